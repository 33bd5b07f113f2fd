"""Per-round counters of agent sessions: how many tokens a round kept and how many it added, without any IDs.

    {"session_id": "a", "round_index": 3, "input_tokens_total": 900, "prefix_tokens": 800, "newly_append_tokens": 100,
     "output_tokens": 40, "timing_events": [{"event_type": "user_message", "timestamp": "2026-05-01T10:00:00Z"}]}

prefix + appended = total. Field names are those of TraceLab (uw-syfi/TraceLab; its data are CC BY 4.0: name it). A
round keeps the first `prefix_tokens` of its session's last prompt and answer and adds new ones. A prefix longer than
that came from elsewhere, and from where is not in the trace: those tokens are taken as new.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.traces.base import LATEST_NS, MalformedRow, Row, TraceReader, text_or_none, whole
from workloads.traces.stretches import Numbers, Stretch, block_ends, cut, length

INPUT_EVENTS = ("user_message", "tool_result")


class Counters(TraceReader):
    """Reads rounds in file order; rounds of a session must follow one another there, other sessions may lie between."""

    format = "counters"
    chained = True
    usual_block_len = 16

    def restart(self) -> None:
        """Forget all sessions."""
        self._numbers = Numbers()
        self._last: dict[str, tuple[Stretch, ...]] = {}
        self.unknown_prefix_tokens = 0
        """Prefix tokens that no earlier round of the session has."""

    @property
    def blind_below(self) -> str:
        """Also what sessions share among each other."""
        return f"{super().blind_below}; what sessions share with one another is not in it at all"

    def decode(self, row: Mapping[str, Any], line: int) -> Sequence[Row]:
        """One round."""
        total = whole(row, "input_tokens_total", least=1)
        prefix, appended = whole(row, "prefix_tokens"), whole(row, "newly_append_tokens")
        if prefix + appended != total:
            raise MalformedRow(f"prefix {prefix} + appended {appended} = {prefix + appended}, and the total is {total}")
        session = text_or_none(row, "session_id") or ""
        output_len = whole(row, "output_tokens") if "output_tokens" in row else 0
        arrival_ns = _arrival(row)
        kept = cut(self._last.get(session, ()), prefix)
        unknown = prefix - length(kept)
        self.unknown_prefix_tokens += unknown
        prompt = (*kept, *self._numbers.take(unknown + appended))
        self._last[session] = (*prompt, *self._numbers.take(output_len))
        made = Row(
            ids=block_ends(prompt, self.block_len),
            arrival_ns=arrival_ns,
            input_len=total,
            output_len=output_len,
            session=session or None,
        )
        return (made,)


def _arrival(row: Mapping[str, Any]) -> int | None:
    """The last input event's time: a round that waits for several tools is sent when the last has answered."""
    events = row.get("timing_events")
    if events is None:
        return None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise MalformedRow("'timing_events' is no list of objects")
    times = [event.get("timestamp") for event in events if event.get("event_type") in INPUT_EVENTS]
    try:
        stamps = [datetime.datetime.fromisoformat(str(time)) for time in times]
    except ValueError:
        raise MalformedRow(f"'timing_events' holds {times!r:.80}, not ISO 8601 times") from None
    utc = [stamp if stamp.tzinfo else stamp.replace(tzinfo=datetime.UTC) for stamp in stamps]
    latest = max((round(stamp.timestamp() * 1e6) * 1000 for stamp in utc), default=None)
    if latest is not None and not 0 <= latest < LATEST_NS:
        raise MalformedRow(f"'timing_events' holds {times!r:.80}, no time between 1970 and 2116")
    return latest
