"""One logged request, what a reader of logs counts, and the order of arrival."""

from __future__ import annotations

import datetime
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from workloads.traces.base import MAX_KEPT, Malformed, TokenIds


@dataclass(slots=True, kw_only=True)
class LoggedRequest:
    """A request as a log shows it; what comes later in the log (the answer) is filled in."""

    line: int
    ids: TokenIds
    arrival_ns: int | None = None
    """On the log's own clock."""
    output_ids: TokenIds | None = None
    output_len: int | None = None
    session: str | None = None
    namespace: str | None = None
    """Cache salt."""
    lora: str | None = None
    hit_len: int | None = None
    """Tokens that the engine took from its cache."""
    prompt_len: int | None = None
    """Prompt tokens by the server's own count, where the log tells."""


@dataclass(slots=True)
class LogReport:
    """What a reader could not use; the counts tell whether the rest can be believed."""

    skipped: int = 0
    skipped_rows: list[Malformed] = field(default_factory=list)
    """The first of them, with reasons."""
    notes: list[str] = field(default_factory=list)
    """Sentences about the log as a whole."""

    def skip(self, line: int, why: str) -> None:
        """Count a request that cannot be used."""
        self.skipped += 1
        if len(self.skipped_rows) < MAX_KEPT:
            self.skipped_rows.append(Malformed(line, why))


class InOrder:
    """Holds requests until they and all before them are complete, so that the file keeps the order of arrival."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[LoggedRequest, bool]] = OrderedDict()

    def arrived(self, name: str, request: LoggedRequest) -> None:
        """A request whose answer may follow."""
        self._open[name] = (request, False)

    def get(self, name: str) -> LoggedRequest | None:
        """One that has not been handed out yet."""
        return self._open[name][0] if name in self._open else None

    def finished(self, name: str) -> Iterator[LoggedRequest]:
        """Nothing more follows for it: the complete ones at the head."""
        if name in self._open:
            self._open[name] = (self._open[name][0], True)
        while self._open and next(iter(self._open.values()))[1]:
            yield self._open.popitem(last=False)[1][0]

    def rest(self) -> Iterator[LoggedRequest]:
        """Whatever is left at the log's end, answered or not."""
        while self._open:
            yield self._open.popitem(last=False)[1][0]


def iso_ns(text: str) -> int:
    """A time in ISO 8601 as nanoseconds since 1970, UTC where it names no zone; ValueError where it is none."""
    stamp = datetime.datetime.fromisoformat(text)
    stamp = stamp if stamp.tzinfo else stamp.replace(tzinfo=datetime.UTC)
    return round(stamp.timestamp() * 1e6) * 1000
