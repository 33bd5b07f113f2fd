"""Readings of records that the table, the figures and the report share: records in, small values out.

Unknown stays unknown: a `None` of the records is shown as "?", never counted as 0.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.records import CellManifest, CellStatus, FindingKind, RequestRecord, Role
from vocabulary.engine import Fidelity
from vocabulary.ledger import Cause

UNKNOWN = "?"
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
        """The requests whose engine reported a hit length."""
        return [r for r in self.requests if r.hit_len is not None]

    @property
    def spread(self) -> int:
        """Longest minus shortest reported hit, in tokens."""
        hits = [r.hit_len for r in self.requests if r.hit_len is not None]
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


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """What one configuration did on one model, over the requests of its workloads (no sentinels, no controls)."""

    label: str
    model: str
    law: str
    requests: int
    prompt_tokens: int
    by_cause: dict[Cause, int]
    explained_tokens: int
    """Prompt tokens of the requests that have a ledger."""
    unknown: int
    """Requests without a ledger: the engine showed neither hit nor start."""
    findings: Counter[FindingKind]
    """Sentinels, controls and findings about whole cells included."""
    cold_ns: int | None
    """Median TTFT of requests with hit 0."""
    warm_ns: int | None
    """Median TTFT of requests with a hit."""

    @property
    def reused(self) -> int | None:
        """Tokens taken from the cache; None where no request has a ledger."""
        return self.by_cause.get(Cause.REUSED, 0) if self.unknown < self.requests else None

    @property
    def share(self) -> float | None:
        """`reused` over the prompt tokens of the same requests."""
        return self.by_cause.get(Cause.REUSED, 0) / self.explained_tokens if self.explained_tokens else None

    @property
    def unexplained(self) -> int | None:
        """Tokens that no cause accounts for; None where no request has a ledger."""
        return self.by_cause.get(Cause.UNEXPLAINED, 0) if self.unknown < self.requests else None


@dataclass(frozen=True, slots=True)
class Remark:
    """A finding with the place it was made at."""

    where: str
    kind: FindingKind
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind.value}: {self.detail}"


def plain(text: str) -> str:
    """One line without control characters, whatever a model folder or a label is called."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def count(value: int | None) -> str:
    """A number of tokens, or "?"."""
    return UNKNOWN if value is None else str(value)


def milliseconds(value_ns: int | None) -> str:
    """A time in milliseconds; "-" where there is none."""
    return "-" if value_ns is None else f"{value_ns / 1e6:.1f}"


def percent(share: float | None) -> str:
    """A share of one, or "?"; never rounded up to 100 % or down to 0 %."""
    if share is None:
        return UNKNOWN
    rounded = round(100 * share, 1)
    if rounded == 100 and share < 1:
        return ">99.9 %"
    return "<0.1 %" if rounded == 0 and share > 0 else f"{rounded:.1f} %"


def span(values: Iterable[int]) -> str:
    """One number, or the least and the greatest."""
    least, *_, greatest = sorted(values) * 2
    return str(least) if least == greatest else f"{least}-{greatest}"


def ledger_items(request: RequestRecord) -> list[str]:
    """Such as "reused 1024", "granule 13", "last_token 1"; "?" without a ledger."""
    return [f"{cause.value} {tokens}" for cause, tokens in request.by_cause().items()] or [UNKNOWN]


def send_name(request: RequestRecord) -> str:
    """The label, which send of this prompt it was if not the first, and whether it is a cold control."""
    again = f" ({request.repetition + 1})" if request.repetition else ""
    control = ", control" if request.role is Role.CONTROL else ""
    return plain(f"{request.label}{again}{control}")


def is_marked(request: RequestRecord) -> bool:
    """Whether the request has a finding or a hit or start that its law does not expect."""
    pairs = ((request.hit_len, request.expected_hit_len), (request.position_start, request.expected_position_start))
    return bool(request.findings) or any(None not in pair and pair[0] != pair[1] for pair in pairs)


def law_text(request: RequestRecord) -> str:
    """The law behind a configuration's expectations, and how it stands to it."""
    if request.law is None:
        return "none covers it"
    if request.fidelity is Fidelity.LAW:
        return f"{request.law} (predicted)"
    return f"{request.law} (emulated)" if request.emulated else request.law


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


def folded(view: WorkloadView) -> tuple[list[tuple[str, SendView]], int]:
    """Sends for a matrix: repeats answered alike become one row, and cold sends that nobody hit none.

    Returns `(name, send)` and the number of cold sends left out.
    """
    rows: list[list[SendView]] = []
    left_out = 0
    for send in view.sends:
        if send.known_hits and all(not r.hit_len and r.lcp_len == 0 and not is_marked(r) for r in send.requests):
            left_out += 1
        elif rows and _folds(rows[-1][-1], send):
            rows[-1].append(send)
        else:
            rows.append([send])
    return [(_range_name(row), row[0]) for row in rows], left_out


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


def engine_summaries(cells: Iterable[CellManifest], requests: Iterable[RequestRecord]) -> list[EngineSummary]:
    """One summary per configuration and model, in the order of the run."""
    found: dict[tuple[str, str], list[RequestRecord]] = {}
    for request in requests:
        found.setdefault((request.model, request.engine_label), []).append(request)
    of_cells: dict[tuple[str, str], Counter[FindingKind]] = {}
    for cell in cells:
        kinds = of_cells.setdefault((cell.model, cell.engine_label), Counter())
        kinds.update(finding.kind for finding in cell.findings)
    return [
        _summary(label, model, of_engine, of_cells.get((model, label), Counter()))
        for (model, label), of_engine in found.items()
    ]


def remarks(cells: Iterable[CellManifest], requests: Iterable[RequestRecord]) -> list[Remark]:
    """Every finding, those about whole cells first; a request's findings of one kind are one remark."""
    about_cells = [
        Remark(plain(f"{cell.engine_label}, {cell.workload} on {cell.model}"), finding.kind, plain(finding.detail))
        for cell in cells
        for finding in cell.findings
    ]
    about_requests = []
    for r in requests:
        details: dict[FindingKind, list[str]] = {}
        for finding in r.findings:
            details.setdefault(finding.kind, []).append(plain(finding.detail))
        where = f"{plain(r.engine_label)}, {plain(r.workload)} on {plain(r.model)}, {send_name(r)}"
        about_requests += [Remark(where, kind, "; ".join(found)) for kind, found in details.items()]
    return about_cells + about_requests


def troubled_cells(cells: Iterable[CellManifest]) -> list[str]:
    """A sentence for each cell that did not complete or whose numbers must not be used."""
    sentences = []
    for cell in cells:
        name = f"{cell.engine_label}, {cell.workload} on {cell.model}"
        if cell.status is not CellStatus.COMPLETE:
            sentences.append(f"{name}: {cell.status.value} after {cell.requests} requests: {cell.why}")
        elif not cell.valid:
            kinds = ", ".join(sorted({finding.kind.value for finding in cell.findings})) or "findings of its requests"
            sentences.append(f"{name}: invalid ({kinds}); its numbers support no verdict")
    return [plain(sentence) for sentence in sentences]


def verdict(cells: Sequence[CellManifest], requests: Sequence[RequestRecord]) -> str:
    """One line: how much was asked, and how much of it is not as it should be."""
    probes = [r for r in requests if r.role is Role.PROBE]
    labels = {r.engine_label for r in probes}
    tokens = sum(r.prompt_len for r in probes)
    unexplained = sum(r.by_cause().get(Cause.UNEXPLAINED, 0) for r in probes)
    unknown = sum(not r.ledger for r in probes)
    parts = [
        f"{unexplained} of {tokens} prompt tokens unexplained",
        number(len(remarks(cells, requests)), "finding"),
        *([f"{number(unknown, 'request')} without hit or start"] if unknown else []),
        *(
            [f"{number(len(troubled), 'cell')} failed, interrupted or invalid"]
            if (troubled := troubled_cells(cells))
            else []
        ),
    ]
    return f"{number(len(probes), 'request')} to {number(len(labels), 'engine configuration')}: {', '.join(parts)}"


def number(count: int, noun: str) -> str:
    """Such as "1 request" or "no requests"."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def _summary(
    label: str, model: str, requests: Sequence[RequestRecord], of_cells: Counter[FindingKind]
) -> EngineSummary:
    probes = [r for r in requests if r.role is Role.PROBE]
    by_cause: Counter[Cause] = Counter()
    for request in probes:
        by_cause.update(request.by_cause())
    explained = [r for r in probes if r.ledger]
    return EngineSummary(
        label=plain(label),
        model=plain(model),
        law=plain(law_text(requests[0])),
        requests=len(probes),
        prompt_tokens=sum(r.prompt_len for r in probes),
        by_cause=dict(by_cause),
        explained_tokens=sum(r.prompt_len for r in explained),
        unknown=len(probes) - len(explained),
        findings=of_cells + Counter(finding.kind for r in requests for finding in r.findings),
        cold_ns=_median(r.ttft_ns for r in probes if r.hit_len == 0),
        warm_ns=_median(r.ttft_ns for r in probes if r.hit_len),
    )


def _median(times: Iterable[int | None]) -> int | None:
    known = [time for time in times if time is not None]
    return round(statistics.median(known)) if known else None


def _send_order(sequences: Sequence[dict[_Key, RequestRecord]]) -> list[_Key]:
    """One order for the sends of all configurations.

    Ladders at each engine's own block edges differ; they ascend in length and are merged by it. In
    other workloads a send that only some engines got follows the send it followed there.
    """
    lengths = {key: r.prompt_len for sequence in sequences for key, r in sequence.items()}
    if all(lengths[a] <= lengths[b] for sequence in sequences for a, b in pairwise(sequence)):
        return sorted(lengths, key=lengths.__getitem__)
    order: list[_Key] = []
    for sequence in sequences:
        at = 0
        for key in sequence:
            if order[at : at + 1] != [key]:
                if key in order:
                    at = order.index(key)
                else:
                    order.insert(at, key)
            at += 1
    return order
