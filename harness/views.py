"""Requests side by side: by workload and model, and within them send by send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.records import RequestRecord, Role
from harness.wording import is_marked, is_unusable, plain, send_name

FEW = 4
"""Cold sends that a matrix shows although they say little."""
FIRST = 100
"""Requests of a cell that are as telling as those that differ, so that every cell shows some."""
_Key = tuple[Role, str, int, int]


@dataclass(frozen=True, slots=True)
class SendView:
    """One send of a workload, as answered by every engine configuration that got it."""

    name: str
    requests: tuple[RequestRecord, ...]
    """In the order of the run's configurations."""

    @property
    def same_prompt(self) -> bool:
        """False where engines got different prompts, as in growing chats whose answers differ."""
        return len({r.prompt_sha256 for r in self.requests}) == 1

    @property
    def known_hits(self) -> list[RequestRecord]:
        """The requests whose engine reported a hit length that can be true."""
        return [r for r in self.requests if r.hit_len is not None and not is_unusable(r)]

    @property
    def spread(self) -> int:
        """Longest minus shortest reported hit, in tokens."""
        hits = [r.hit_len or 0 for r in self.known_hits]
        return max(hits) - min(hits) if hits else 0


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """One workload on one model."""

    workload: str
    model: str
    labels: tuple[str, ...]
    """Engine configurations, in the order of the run."""
    sends: tuple[SendView, ...]

    @property
    def title(self) -> str:
        """Workload and model, for headings."""
        return f"{self.workload} on {self.model}"

    @property
    def requests(self) -> list[RequestRecord]:
        """All requests, send by send."""
        return [r for send in self.sends for r in send.requests]


def workload_views(
    requests: Iterable[RequestRecord], *, roles: frozenset[Role] = frozenset({Role.PROBE})
) -> list[WorkloadView]:
    """The requests of these roles by workload and model, and within them by send."""
    found: dict[tuple[str, str], dict[str, dict[_Key, RequestRecord]]] = {}
    for request in requests:
        if request.role in roles:
            answers = found.setdefault((request.workload, request.model), {}).setdefault(request.engine_label, {})
            number = 0
            while (key := (request.role, request.label, request.repetition, number)) in answers:
                number += 1
            answers[key] = request
    views = []
    for (workload, model), by_label in found.items():
        sends = []
        for key in _send_order(list(by_label.values())):
            answered = tuple(answers[key] for answers in by_label.values() if key in answers)
            sends.append(SendView(send_name(answered[0]), answered))
        views.append(WorkloadView(plain(workload), plain(model), tuple(by_label), tuple(sends)))
    return views


def differing(views: Iterable[WorkloadView]) -> frozenset[str]:
    """IDs of the requests whose send the configurations answered with different hits."""
    return frozenset(r.request_id for view in views for send in view.sends if send.spread for r in send.requests)


def most_telling(requests: Sequence[RequestRecord], differ: frozenset[str], limit: int) -> Sequence[RequestRecord]:
    """At most `limit` requests in their order: those not as the law says first, then those whose IDs are in `differ`
    and the first of every cell, then the rest, the early ones of a cell first."""
    if len(requests) <= limit:
        return requests

    def rank(place: int) -> tuple[bool, bool, int]:
        request = requests[place]
        return (not is_marked(request), request.request_id not in differ and request.index >= FIRST, request.index)

    return [requests[place] for place in sorted(sorted(range(len(requests)), key=rank)[:limit])]


def telling_rows(rows: Sequence[tuple[str, SendView]], limit: int) -> Sequence[tuple[str, SendView]]:
    """At most `limit` rows of a matrix in their order, those with a mark or different hits first."""
    if len(rows) <= limit:
        return rows

    def rank(place: int) -> tuple[bool, bool]:
        send = rows[place][1]
        return (not any(map(is_marked, send.requests)), not send.spread)

    return [rows[place] for place in sorted(sorted(range(len(rows)), key=rank)[:limit])]


def folded(view: WorkloadView) -> tuple[list[tuple[str, SendView]], int]:
    """Sends for a matrix: repeats answered alike become one row; cold sends that nobody hit none, if they are many.

    Returns `(name, send)` and the number of cold sends left out.
    """
    cold = [_is_plain_cold(send) for send in view.sends]
    left_out = sum(cold) if sum(cold) > FEW else 0
    rows: list[list[SendView]] = []
    for send, is_cold in zip(view.sends, cold, strict=True):
        if is_cold and left_out:
            continue
        if rows and _folds(rows[-1][-1], send):
            rows[-1].append(send)
        else:
            rows.append([send])
    return [(_range_name(row), row[0]) for row in rows], left_out


def _is_plain_cold(send: SendView) -> bool:
    """Nothing to share with anything before, nobody claims a hit, no findings."""
    return bool(send.known_hits) and all(not r.hit_len and r.lcp_len == 0 and not is_marked(r) for r in send.requests)


def _folds(send: SendView, following: SendView) -> bool:
    """Whether the next send repeats this one's prompt and every engine answered it alike, without findings."""
    if len(send.requests) != len(following.requests):
        return False
    return all(
        (a.engine_label, a.label, a.prompt_sha256, a.hit_len) == (b.engine_label, b.label, b.prompt_sha256, b.hit_len)
        and b.repetition == a.repetition + 1
        and not is_marked(a)
        and not is_marked(b)
        for a, b in zip(send.requests, following.requests, strict=True)
    )


def _range_name(row: Sequence[SendView]) -> str:
    first, last = row[0].requests[0], row[-1].requests[0]
    if first is last:
        return row[0].name
    return plain(f"{first.label} ({first.repetition + 1}-{last.repetition + 1})")


def _send_order(sequences: Sequence[dict[_Key, RequestRecord]]) -> list[_Key]:
    """One order for the sends of all configurations.

    Ladders at each engine's own block edges differ; they ascend in length and are merged by it. In
    other workloads a send that only some engines got follows the send it followed there.
    """
    lengths = {key: r.prompt_len for sequence in sequences for key, r in sequence.items()}
    if all(lengths[a] <= lengths[b] for sequence in sequences for a, b in pairwise(sequence)):
        return sorted(lengths, key=lengths.__getitem__)
    following: dict[_Key | None, _Key | None] = {None: None}  # a linked list: a hundred thousand sends are inserted
    for sequence in sequences:
        last: _Key | None = None
        for key in sequence:
            if key not in following:
                following[key], following[last] = following[last], key
            last = key
    order: list[_Key] = []
    while (next_key := following[order[-1] if order else None]) is not None:
        order.append(next_key)
    return order
