"""Qwen-Bailian: one JSON object a line, with salted hashes of its 16-token blocks.

    {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 1, "hash_ids": [1089, 1090, 6326]}

`timestamp` in seconds; `parent_chat_id` is -1 for a first turn. Source: alibaba-edu/qwen-bailian-usagetraces-anon,
Apache-2.0. In its two mixed sets an ID stands for the content of a block and not for its prefix (found by a third party
who re-keyed them), so equal IDs may follow unequal prefixes: every ID is re-keyed by its chain, and the reader counts
those it had to split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workloads.traces.base import Row, TraceReader, block_list, text_or_none, time_ns, whole

SECOND = 1_000_000_000
NO_PARENT = "-1"


class Bailian(TraceReader):
    """Reads the format; the session of a request is the chat its chain of parents begins with."""

    format = "bailian"
    usual_block_len = 16

    def restart(self) -> None:
        """Forget the chats of the last loop."""
        self._roots: dict[str, str] = {}

    def decode(self, row: Mapping[str, Any], line: int) -> Sequence[Row]:
        """One row of the format."""
        input_len = whole(row, "input_length", least=1)
        chat, parent = text_or_none(row, "chat_id"), text_or_none(row, "parent_chat_id")
        made = Row(
            ids=block_list(row, "hash_ids", input_len, self.block_len, line),
            arrival_ns=time_ns(row, "timestamp", SECOND),
            input_len=input_len,
            output_len=whole(row, "output_length"),
            session=self._session(chat, parent),
            parent=None if parent == NO_PARENT else parent,
        )
        return (made,)

    def _session(self, chat: str | None, parent: str | None) -> str | None:
        if chat is None:
            return None
        root = chat if parent in (None, NO_PARENT) else self._roots.get(parent or "", parent or "")
        self._roots[chat] = root
        return root
