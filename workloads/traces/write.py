"""Generated traffic in the formats that readers read; rows hold what the format's own producer would write."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from vocabulary.errors import UsageError
from workloads.traces.agents import Agents
from workloads.traces.bailian import Bailian
from workloads.traces.base import TokenIds
from workloads.traces.chain import mix
from workloads.traces.counters import Counters
from workloads.traces.generate import SECOND, Generated
from workloads.traces.mooncake import MS, Mooncake
from workloads.traces.own import Own, TraceHead, TraceWriter
from workloads.traces.stretches import Stretch, block_ends

Rows = Iterator[dict[str, Any]]
VOCAB_SIZE = 32_000
"""IDs of generated traces in hitparity's own format lie below."""


def write_trace(requests: Iterable[Generated], path: Path, format_name: str, block_len: int) -> tuple[int, int]:
    """Requests and prompt tokens written; UsageError where the file cannot be written."""
    if format_name == Own.format:
        return _write_own(requests, path)
    count = tokens = 0

    def counted() -> Iterator[Generated]:
        nonlocal count, tokens
        for request in requests:
            count += 1
            tokens += request.input_len
            yield request

    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for row in WRITERS[format_name](counted(), block_len):
                file.write(json.dumps(row) + "\n")
        os.replace(part, path)  # noqa: PTH105  (one file system by construction)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; choose another file") from None
    finally:
        part.unlink(missing_ok=True)
    return count, tokens


def _mooncake(requests: Iterable[Generated], block_len: int) -> Rows:
    for each in requests:
        yield {
            "timestamp": each.arrival_ns // MS,
            "input_length": each.input_len,
            "output_length": each.output_len,
            "hash_ids": block_ends(each.prompt, block_len).tolist(),
        }


def _bailian(requests: Iterable[Generated], block_len: int) -> Rows:
    last: dict[int, int] = {}
    for chat, each in enumerate(requests):
        yield {
            "chat_id": chat,
            "parent_chat_id": last.get(each.session, -1),
            "timestamp": each.arrival_ns / SECOND,
            "input_length": each.input_len,
            "output_length": each.output_len,
            "type": "text",
            "turn": each.turn,
            "hash_ids": block_ends(each.prompt, block_len).tolist(),
        }
        last[each.session] = chat


def _agents(requests: Iterable[Generated], block_len: int) -> Rows:
    for session, group in groupby(sorted(requests, key=lambda each: each.session), key=lambda each: each.session):
        rounds = list(group)
        entries = [
            {
                "t": (each.arrival_ns - rounds[0].arrival_ns) / SECOND,
                "type": "n",
                "model": "synthetic",
                "in": each.input_len,
                "out": each.output_len,
                "hash_ids": block_ends(each.prompt, block_len, partial=False).tolist(),
            }
            for each in rounds
        ]
        head = {"id": f"session-{session}", "models": ["synthetic"], "block_size": block_len}
        yield head | {"hash_id_scope": "local", "requests": entries}


def _counters(requests: Iterable[Generated], block_len: int) -> Rows:
    for each in requests:
        seconds, rest = divmod(each.arrival_ns, SECOND)
        stamp = np.datetime_as_string(np.datetime64(seconds, "s"))
        yield {
            "session_id": f"session-{each.session}",
            "round_index": each.turn - 1,
            "input_tokens_total": each.input_len,
            "prefix_tokens": each.kept_len,
            "newly_append_tokens": each.input_len - each.kept_len,
            "output_tokens": each.output_len,
            "timing_events": [{"event_type": "user_message", "timestamp": f"{stamp}.{rest // 1000:06d}Z"}],
        }


WRITERS: dict[str, Callable[[Iterable[Generated], int], Rows]] = {
    Mooncake.format: _mooncake,
    Bailian.format: _bailian,
    Agents.format: _agents,
    Counters.format: _counters,
}


def _write_own(requests: Iterable[Generated], path: Path) -> tuple[int, int]:
    tokens = 0
    with TraceWriter(path, TraceHead(source="generated", vocab_size=VOCAB_SIZE)) as writer:
        for each in requests:
            tokens += each.input_len
            writer.add(
                ids_of(each.prompt),
                output_len=each.output_len,
                arrival_ns=each.arrival_ns,
                session=f"session-{each.session}",
            )
        return writer.requests, tokens


def ids_of(prompt: Iterable[Stretch]) -> TokenIds:
    """Token IDs below `VOCAB_SIZE`, a hash of each number: stretches may begin alike by chance, as real words do."""
    numbers = np.concatenate([np.arange(start, start + count, dtype=np.uint64) for start, count in prompt])
    return (mix(numbers) % np.uint64(VOCAB_SIZE)).astype(np.int32)
