"""What a run amounts to: numbers per engine configuration, every finding, and the verdict in a line."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.records import CellManifest, CellStatus, FindingKind, RequestRecord, Role
from harness.wording import UNKNOWN, is_unusable, law_text, number, plain, send_name
from vocabulary.ledger import Cause


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
    unusable: int
    """Requests without a ledger: a hit, start or token ID is out of range."""
    lawless: bool
    """No law covers the configuration, so nothing of it can be unexplained."""
    findings: Counter[FindingKind]
    """The configuration's `remarks` by kind."""
    cold_ns: int | None
    """Median TTFT of requests with hit 0."""
    warm_ns: int | None
    """Median TTFT of requests with a hit."""

    @property
    def reused(self) -> int | None:
        """Tokens taken from the cache; None where no request has a ledger."""
        return self.by_cause.get(Cause.REUSED, 0) if self.explained_tokens else None

    @property
    def share(self) -> float | None:
        """`reused` over the prompt tokens of the same requests."""
        return self.by_cause.get(Cause.REUSED, 0) / self.explained_tokens if self.explained_tokens else None

    @property
    def unexplained(self) -> int | None:
        """Tokens reused less than the law says; None where there is no law or no request has a ledger."""
        return None if self.lawless or not self.explained_tokens else self.by_cause.get(Cause.UNEXPLAINED, 0)

    @property
    def gaps(self) -> list[str]:
        """What the numbers leave out and why, a sentence each."""
        of = f"of {number(self.requests, 'request')}"
        uncovered = self.by_cause.get(Cause.NO_LAW, 0)
        gaps = {
            f"{self.unknown} {of} showed neither hit nor start; reused leaves them out": self.unknown,
            f"{self.unusable} {of} gave a number out of range; reused leaves them out": self.unusable,
            f"{number(uncovered, 'token')} that no law covers; nothing is claimed about them": uncovered,
        }
        return [f"{self.label} on {self.model}: {gap}" for gap, amount in gaps.items() if amount]


@dataclass(frozen=True, slots=True)
class Remark:
    """One event that is a finding, with the place it happened at."""

    label: str
    model: str
    where: str
    """Workload, and the send unless it is about the whole cell."""
    kind: FindingKind
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.kind.value}: {self.detail}"

    @property
    def place(self) -> str:
        """Configuration, workload, model and send."""
        return f"{self.label}, {self.where}"


def engine_summaries(cells: Iterable[CellManifest], requests: Iterable[RequestRecord]) -> list[EngineSummary]:
    """One summary per configuration and model, in the order of the run; those that answered nothing included."""
    found: dict[tuple[str, str], tuple[list[CellManifest], list[RequestRecord]]] = {}
    for cell in cells:
        found.setdefault((cell.model, cell.engine_label), ([], []))[0].append(cell)
    for request in requests:
        found.setdefault((request.model, request.engine_label), ([], []))[1].append(request)
    return [_summary(label, model, *of_engine) for (model, label), of_engine in found.items()]


def remarks(cells: Iterable[CellManifest], requests: Iterable[RequestRecord]) -> list[Remark]:
    """Every finding, those about whole cells first; a request's findings of one kind are one event.

    All counts of findings are counts of these.
    """
    about_cells = [
        Remark(
            plain(cell.engine_label),
            plain(cell.model),
            plain(f"{cell.workload} on {cell.model}"),
            finding.kind,
            plain(finding.detail),
        )
        for cell in cells
        for finding in cell.findings
    ]
    about_requests = []
    for r in requests:
        details: dict[FindingKind, list[str]] = {}
        for finding in r.findings:
            details.setdefault(finding.kind, []).append(plain(finding.detail))
        where = f"{plain(r.workload)} on {plain(r.model)}, {send_name(r)}"
        about_requests += [
            Remark(plain(r.engine_label), plain(r.model), where, kind, "; ".join(found))
            for kind, found in details.items()
        ]
    return about_cells + about_requests


def unfinished_cells(
    cells: Iterable[CellManifest], requests: Iterable[RequestRecord], planned: Iterable[str]
) -> list[str]:
    """A sentence for each planned cell that did not complete, with the reason; `planned` holds cell IDs."""
    sent = Counter(request.cell for request in requests)
    by_id = {cell.cell: cell for cell in cells}
    sentences = []
    for cell_id in dict.fromkeys([*planned, *by_id]):
        if (cell := by_id.get(cell_id)) is None:
            killed = f"unfinished, killed after {number(sent[cell_id], 'request')}"
            sentences.append(f"{cell_id}: {killed if sent[cell_id] else 'not run'}")
        elif cell.status is not CellStatus.COMPLETE:
            name = f"{cell.engine_label}, {cell.workload} on {cell.model}"
            sentences.append(f"{name}: {cell.status.value} after {cell.requests} requests: {cell.why}")
    return [plain(sentence) for sentence in sentences]


def invalid_cells(cells: Iterable[CellManifest]) -> list[str]:
    """A sentence for each complete cell whose numbers must not be used."""
    sentences = []
    for cell in cells:
        if cell.status is CellStatus.COMPLETE and not cell.valid:
            kinds = ", ".join(sorted({finding.kind.value for finding in cell.findings})) or "findings of its requests"
            name = f"{cell.engine_label}, {cell.workload} on {cell.model}"
            sentences.append(f"{name}: invalid ({kinds}); its numbers support no verdict")
    return [plain(sentence) for sentence in sentences]


def verdict(cells: Sequence[CellManifest], requests: Sequence[RequestRecord], planned: Sequence[str] = ()) -> str:
    """One line: how much was asked, what is missing, and how much of it is not as it should be."""
    probes = [r for r in requests if r.role is Role.PROBE]
    labels = {r.engine_label for r in probes}
    tokens = sum(r.prompt_len for r in probes)
    by_cause: Counter[Cause] = Counter()
    for r in probes:
        by_cause.update(r.by_cause())
    unusable = sum(not r.ledger and is_unusable(r) for r in probes)
    unknown = sum(not r.ledger for r in probes) - unusable
    found, invalid = len(remarks(cells, requests)), len(invalid_cells(cells))
    missing, total = len(unfinished_cells(cells, requests, planned)), len({*planned, *(c.cell for c in cells)})
    parts = {
        f"{missing} of {number(total, 'planned cell')} not run or unfinished": missing,
        f"{by_cause[Cause.UNEXPLAINED]} of {tokens} prompt tokens unexplained": probes,
        f"{number(by_cause[Cause.NO_LAW], 'token')} of engines that no law covers": by_cause[Cause.NO_LAW],
        f"{number(unknown, 'request')} without hit or start": unknown,
        f"{number(unusable, 'request')} with a number out of range": unusable,
        f"{number(invalid, 'cell')} invalid": invalid,
        number(found, "finding"): probes or found,
    }
    asked = f"{number(len(probes), 'request')} to {number(len(labels), 'engine configuration')}"
    told = ", ".join(part for part, worth_telling in parts.items() if worth_telling)
    return f"{asked if probes else 'nothing was measured: no request was answered'}{f': {told}' if told else ''}"


def median_ttft(requests: Iterable[RequestRecord], *, warm: bool) -> int | None:
    """Median TTFT in nanoseconds of the requests with a hit, or of those with hit 0; None where there are none."""
    times = [
        r.ttft_ns
        for r in requests
        if r.ttft_ns is not None and r.hit_len is not None and bool(r.hit_len) is warm and not is_unusable(r)
    ]
    return round(statistics.median(times)) if times else None


def _summary(label: str, model: str, cells: Sequence[CellManifest], requests: Sequence[RequestRecord]) -> EngineSummary:
    probes = [r for r in requests if r.role is Role.PROBE]
    by_cause: Counter[Cause] = Counter()
    for request in probes:
        by_cause.update(request.by_cause())
    silent = [r for r in probes if not r.ledger]
    unusable = sum(is_unusable(r) for r in silent)
    return EngineSummary(
        label=plain(label),
        model=plain(model),
        law=plain(law_text(requests[0])) if requests else UNKNOWN,
        requests=len(probes),
        prompt_tokens=sum(r.prompt_len for r in probes),
        by_cause=dict(by_cause),
        explained_tokens=sum(r.prompt_len for r in probes if r.ledger),
        unknown=len(silent) - unusable,
        unusable=unusable,
        lawless=bool(requests) and requests[0].law is None,
        findings=Counter(remark.kind for remark in remarks(cells, requests)),
        cold_ns=median_ttft(probes, warm=False),
        warm_ns=median_ttft(probes, warm=True),
    )
