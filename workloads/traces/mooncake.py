"""Mooncake: one JSON object a line, with the IDs of its 512-token blocks.

    {"timestamp": 27000, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}

`timestamp` in ms; an ID stands for the whole prefix up to the end of its block, and the last, partial block has one
too. Source: kvcache-ai/Mooncake, FAST25-release/traces at 3b5a594 (2026-08-22), Apache-2.0. A partial block never comes
again as a full one there: a chat that goes on forks at its last full block, although in truth it shared more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workloads.traces.base import Row, TraceReader, block_list, text_or_none, time_ns, whole

MS = 1_000_000


class Mooncake(TraceReader):
    """Reads the format with blocks of 512 tokens, or of another size where a file was made with one."""

    format = "mooncake"
    usual_block_len = 512

    def decode(self, row: Mapping[str, Any], line: int) -> Sequence[Row]:
        """One row of the format."""
        input_len = whole(row, "input_length", least=1)
        made = Row(
            ids=block_list(row, "hash_ids", input_len, self.block_len, line),
            arrival_ns=time_ns(row, "timestamp", MS),
            input_len=input_len,
            output_len=whole(row, "output_length"),
            session=text_or_none(row, "session_id"),
        )
        return (made,)
