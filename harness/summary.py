"""What a run amounts to: numbers per engine configuration, every finding, and the verdict in a line."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.records import CellManifest, CellStatus, FindingKind, RequestRecord, Role
from harness.wording import law_text, number, plain, send_name
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


def median_ttft(requests: Iterable[RequestRecord], *, warm: bool) -> int | None:
    """Median TTFT in nanoseconds of the requests with a hit, or of those with hit 0; None where there are none."""
    times = [r.ttft_ns for r in requests if r.ttft_ns is not None and r.hit_len is not None and bool(r.hit_len) is warm]
    return round(statistics.median(times)) if times else None


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
        cold_ns=median_ttft(probes, warm=False),
        warm_ns=median_ttft(probes, warm=True),
    )
