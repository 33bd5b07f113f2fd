"""Mooncake: one JSON object a line, with the IDs of its 512-token blocks.

    {"timestamp": 27000, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}

`timestamp` in ms; an ID stands for the whole prefix up to the end of its block, and the last, partial block has one
too. Source: kvcache-ai/Mooncake, FAST25-release/traces at 3b5a594 (2026-08-22), Apache-2.0. A partial block never comes
again as a full one there: a chat that goes on forks at its last full block, although in truth it shared more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vocabulary.errors import UsageError
from workloads.traces.base import Row, TraceReader, block_list, time_ns, whole

MS = 1_000_000


class Mooncake(TraceReader):
    """Reads the format with blocks of 512 tokens, or of another size where a file was made with one."""

    format = "mooncake"

    def __init__(
        self,
        path: Path,
        *,
        block_len: int = 512,
        skip_malformed: bool = False,
        rekey: bool = True,
        limit: int | None = None,
    ):
        super().__init__(path, skip_malformed=skip_malformed, rekey=rekey, limit=limit)
        if block_len < 1:
            raise UsageError(f"a block of {block_len} tokens: it holds one at least")
        self.block_len = block_len

    def decode(self, row: Mapping[str, Any]) -> Row:
        """One row of the format."""
        input_len = whole(row, "input_length", least=1)
        return Row(
            ids=block_list(row, "hash_ids", input_len, self.block_len),
            arrival_ns=time_ns(row, "timestamp", MS),
            input_len=input_len,
            output_len=whole(row, "output_length"),
        )
