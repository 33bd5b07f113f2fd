"""Agent sessions with 64-token block IDs: one JSON object a session.

    {"id": "session-1", "block_size": 64, "hash_id_scope": "local", "requests": [
      {"t": 0.0, "type": "n", "in": 130, "out": 20, "hash_ids": [1, 2]},
      {"t": 4.5, "type": "subagent", "requests": [{"t": 5.0, "type": "s", "in": 70, "out": 9, "hash_ids": [3]}]}]}

`t` in seconds since the session's beginning; whole blocks only have IDs. The fields are those that aiperf 0.13.0 reads
(`weka_trace_models.py`), for the sets named cc-traces-weka. IDs are local to a session: what sessions share among each
other (system prompt, tools) is not in the trace. Sessions have no common clock, so they are laid one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from workloads.traces.base import LATEST_NS, MalformedRow, Row, TraceReader, block_list, text_or_none, time_ns, whole
from workloads.traces.chain import mix

SECOND = 1_000_000_000


class Agents(TraceReader):
    """Reads sessions; requests of an agent and of its subagents are ordered by their times."""

    format = "agents"
    usual_block_len = 64

    def restart(self) -> None:
        """The first session begins at 0."""
        self._begin_ns = 0

    @property
    def blind_below(self) -> str:
        """Also what sessions share among each other."""
        return f"{super().blind_below}; what sessions share with one another is not in it at all"

    def decode(self, row: Mapping[str, Any], line: int) -> Sequence[Row]:
        """All requests of one session."""
        if (block := whole(row, "block_size", least=1)) != self.block_len:
            raise MalformedRow(f"blocks of {block} tokens, and the reader was opened for {self.block_len}")
        session = text_or_none(row, "id")
        salt = int(mix(np.array([line], np.uint64)).view(np.int64)[0])
        requests = []
        for number, entry in enumerate(_flat(row.get("requests"))):
            input_len = whole(entry, "in", least=1)
            # A tail without an ID is told apart from those of other requests by its number in the session.
            ids = block_list(entry, "hash_ids", input_len, self.block_len, line * 2**20 + number)
            requests.append(
                Row(
                    ids=np.asarray(ids) ^ salt,
                    arrival_ns=self._begin_ns + time_ns(entry, "t", SECOND),
                    input_len=input_len,
                    output_len=whole(entry, "out"),
                    session=session,
                )
            )
        requests.sort(key=lambda request: request.arrival_ns or 0)
        if requests and (requests[-1].arrival_ns or 0) >= LATEST_NS:
            raise MalformedRow("'t' is too late: laid one after another, the sessions take more than 146 years")
        self._begin_ns = requests[-1].arrival_ns or 0 if requests else self._begin_ns
        return requests


def _flat(entries: Any) -> Iterator[Mapping[str, Any]]:
    """Requests of a session and of its subagents."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MalformedRow("'requests' is no list of objects")
    for entry in entries:
        if entry.get("type") == "subagent":
            yield from _flat(entry.get("requests"))
        else:
            yield entry
