"""Trace formats by name, and which one a file is in."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vocabulary.errors import UsageError
from workloads.traces.agents import Agents
from workloads.traces.bailian import Bailian
from workloads.traces.base import TraceReader, first_line
from workloads.traces.counters import Counters
from workloads.traces.mooncake import Mooncake
from workloads.traces.own import FORMAT, Own

READERS: dict[str, type[TraceReader]] = {reader.format: reader for reader in (Own, Mooncake, Bailian, Agents, Counters)}


def open_trace(
    path: Path,
    format_name: str | None = None,
    *,
    block_len: int | None = None,
    skip_malformed: bool = False,
    rekey: bool = True,
    limit: int | None = None,
) -> TraceReader:
    """A reader of the file; where no format is named, the first line decides. UsageError where it is unknown."""
    if format_name is not None and format_name not in READERS:
        near = difflib.get_close_matches(format_name, READERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(READERS)}"
        raise UsageError(f"trace format {format_name!r}: {hint}")
    name = format_name or _recognised(path)
    return READERS[name](path, block_len=block_len, skip_malformed=skip_malformed, rekey=rekey, limit=limit)


def _recognised(path: Path) -> str:
    try:
        row = json.loads(first_line(path))
    except (ValueError, RecursionError):
        row = None
    name = _format_of(row) if isinstance(row, dict) else None
    if name is None:
        raise UsageError(
            f"{path}: its first line is in none of the trace formats {', '.join(READERS)}; name one with --format, "
            f"or make a trace of a log with `hitparity import`"
        )
    return name


def _format_of(row: Mapping[str, Any]) -> str | None:
    keys = set(row)
    if row.get("format") == FORMAT:
        return Own.format
    for name, needed in (
        (Bailian.format, {"chat_id", "hash_ids", "input_length"}),
        (Mooncake.format, {"hash_ids", "input_length"}),
        (Agents.format, {"block_size", "requests"}),
        (Counters.format, {"input_tokens_total", "prefix_tokens"}),
    ):
        if needed <= keys:
            return name
    return None
