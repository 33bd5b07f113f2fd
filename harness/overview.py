"""What a run amounts to, as one record: the JSON report, and what the HTML, JUnit and short Markdown reports say.

It holds no folder and no time of its own, so the same run gives the same report wherever it lies.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness.outcome import exit_code
from harness.records import CellManifest, CellStatus, FindingKind, RequestRecord, Role
from harness.store import Run
from harness.summary import (
    EngineSummary,
    Remark,
    engine_summaries,
    invalid_cells,
    remarks,
    unfinished_cells,
    verdict,
)
from harness.views import SendView, WorkloadView, workload_views
from harness.wording import UNKNOWN, count, law_text, ledger_items, number, plain, span
from vocabulary.engine import EngineFacts, Fidelity
from vocabulary.errors import ExitCode, UsageError
from vocabulary.ledger import Cause

OVERVIEW_SCHEMA: Literal["hitparity.report/1"] = "hitparity.report/1"
_FACTS = TypeAdapter(EngineFacts)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EngineLine(_Part):
    """One engine configuration as it ran."""

    label: str
    """Its name in tables."""
    engine: str
    """The engine's name."""
    version: str
    """As the engine reports it; "?" if it never started."""
    mode: str
    """How it was reached, and what stands behind the answers."""
    device: str
    """Where and in what type the model ran; "-" for a prediction."""
    granule: int | None
    """Smallest reusable step in tokens."""
    law: str
    """The law behind the expectations and how it stands to the engine."""
    notes: tuple[str, ...]
    """Limits that the engine's adapter told."""


class TotalLine(_Part):
    """What one configuration did on one model, over the requests of its workloads."""

    label: str
    """The engine configuration."""
    model: str
    """The model."""
    requests: int
    """Requests of the workloads; sentinels and controls are not counted."""
    prompt_tokens: int
    """Their prompt tokens."""
    tokens_by_cause: dict[Cause, int]
    """Prompt tokens by what became of them; empty where nothing is known."""
    reused_tokens: int | None
    """Taken from the cache."""
    reused_share: float | None
    """Of the prompt tokens whose fate is known."""
    unexplained_tokens: int | None
    """Reused less than the law says; null where no law covers the engine."""
    cold_ttft_ns: int | None
    """Median TTFT of requests with hit 0."""
    warm_ttft_ns: int | None
    """Median TTFT of requests with a hit."""
    findings: dict[FindingKind, int]
    """How many of each kind."""


class WorkloadLine(_Part):
    """One workload on one model: how far the configurations agree."""

    workload: str
    """The workload's name in the experiment."""
    model: str
    """The model."""
    sends: int
    """Sends that at least two configurations answered."""
    differing_sends: int
    """Of these, sends with different hits."""
    widest_tokens: int
    """Longest minus shortest hit of one send."""
    difference: str
    """The same in a sentence, with the widest difference and the causes on both sides."""


class FindingLine(_Part):
    """One thing that is not as it should be."""

    label: str
    """The engine configuration."""
    model: str
    """The model."""
    where: str
    """Workload, and the send unless it is about the whole cell."""
    kind: FindingKind
    """What is wrong."""
    detail: str
    """A sentence with the numbers."""


class CellLine(_Part):
    """One cell: one engine configuration on one workload and model."""

    cell: str
    """Folder name in the run."""
    label: str
    """The engine configuration; empty for a cell that never ran."""
    engine: str
    """The engine's name."""
    model: str
    """The model."""
    workload: str
    """The workload's name in the experiment."""
    law: str | None
    """The law that judged it; null: none covers it, or nothing was sent."""
    predicted: bool
    """True where the law itself answered and no engine ran."""
    status: CellStatus | None
    """How it ended; null: it was not run, or killed."""
    why: str
    """Reason of an interruption or failure."""
    valid: bool
    """False: the numbers support no verdict."""
    requests: int
    """Requests of the workload."""
    prompt_tokens: int
    """Their prompt tokens."""
    tokens_by_cause: dict[Cause, int]
    """Prompt tokens by what became of them; empty where nothing is known."""
    known_tokens: int
    """Prompt tokens of the requests that have a ledger."""
    total_ns: int
    """Time in the engine, sentinels and controls included."""
    findings: tuple[FindingLine, ...]
    """Of the cell and its requests."""


class Overview(_Part):
    """What was compared, what differs, why, and what is not explained."""

    schema_id: Literal["hitparity.report/1"] = Field(OVERVIEW_SCHEMA, alias="schema")
    """Name and version of this record."""
    experiment: str
    """The experiment's name."""
    started: str
    """UTC, ISO 8601."""
    hitparity: str
    """Version of hitparity that made the run."""
    machine: dict[str, str]
    """The machine, in words."""
    verdict: str
    """The run in one line."""
    exit_code: ExitCode
    """The gravest thing that happened."""
    engines: tuple[EngineLine, ...]
    """In the order of the run."""
    workloads: tuple[WorkloadLine, ...]
    """What differs."""
    totals: tuple[TotalLine, ...]
    """Why."""
    unexplained: tuple[str, ...]
    """What is not explained, a sentence each; empty: nothing is left."""
    findings: tuple[FindingLine, ...]
    """Everything that is not as it should be."""
    cells: tuple[CellLine, ...]
    """Every planned cell."""
    remarks: tuple[str, ...]
    """What reading the run left out or open."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def overview(run: Run) -> Overview:
    """Everything the reports say about a run."""
    views = workload_views(run.requests)
    summaries = engine_summaries(run.cells, run.requests)
    found = remarks(run.cells, run.requests)
    code, unfinished = exit_code(run), unfinished_cells(run.cells, run.requests, run.manifest.cells)
    return Overview(
        experiment=plain(run.manifest.experiment),
        started=run.manifest.started,
        hitparity=run.manifest.hitparity,
        machine=dict(machine_lines(run)),
        verdict=verdict(run.cells, run.requests, run.manifest.cells),
        exit_code=ExitCode.INCONCLUSIVE if code is ExitCode.CLEAN and unfinished else code,
        engines=tuple(_engine_line(c) for c in configurations(run)),
        workloads=tuple(_workload_line(view) for view in views),
        totals=tuple(_total_line(summary) for summary in summaries),
        unexplained=tuple(_not_explained(run, summaries)),
        findings=tuple(_finding_line(remark) for remark in found),
        cells=tuple(_cell_lines(run)),
        remarks=tuple(remark.replace(f"{run.folder}/", "") for remark in run.remarks),
    )


def overview_json(run: Run) -> str:
    """The overview as JSON with sorted keys; the same run gives the same text."""
    return json.dumps(overview(run).model_dump(mode="json", by_alias=True), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One engine configuration of the run, as the reports tell it."""

    label: str
    engine: str
    version: str
    mode: str
    device: str
    granule: str
    law: str
    hit_sources: str
    position_sources: str
    roles: Counter[Role]
    notes: tuple[str, ...]
    options: str
    """JSON of what the engine reports; empty if it never started."""


def configurations(run: Run) -> list[Configuration]:
    """In the order of the run, those that never started included."""
    by_label: dict[str, list[CellManifest]] = {}
    for cell in run.cells:
        by_label.setdefault(cell.engine_label, []).append(cell)
    found = []
    for label, cells in by_label.items():
        requests = [r for r in run.requests if r.engine_label == label]
        facts = next((_facts(cell) for cell in cells if cell.facts), None)
        first = requests[0] if requests else None
        found.append(
            Configuration(
                label=label,
                engine=facts.engine if facts else cells[0].engine,
                version=facts.version if facts else UNKNOWN,
                mode=_mode(facts) if facts else "did not start",
                device=f"{facts.device} {facts.dtype}" if facts and facts.fidelity is not Fidelity.LAW else "-",
                granule=str(facts.granule) if facts else UNKNOWN,
                law=law_text(first) if first else UNKNOWN,
                hit_sources=", ".join(distinct(r.hit_source for r in requests)) or "-",
                position_sources=", ".join(distinct(r.position_source for r in requests)) or "-",
                roles=Counter(r.role for r in requests),
                notes=facts.notes if facts else (),
                options=json_text(dict(facts.options)) if facts else "",
            )
        )
    return found


def _facts(cell: CellManifest) -> EngineFacts:
    try:
        return _FACTS.validate_python(cell.facts)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"cell {cell.cell}: facts, key {key!r}: {problem['msg']}; run the cell again") from None


def _mode(facts: EngineFacts) -> str:
    return f"{facts.mode.value}, {facts.fidelity.value}" if facts.mode else facts.fidelity.value


def difference(view: WorkloadView) -> str:
    """How often the configurations disagree, and the widest disagreement with the causes on both sides."""
    compared = [send for send in view.sends if len(send.known_hits) > 1]
    differing = [send for send in compared if send.spread]
    if not compared:
        return "fewer than two configurations reported hits, so there is nothing to compare."
    if not differing:
        return f"all configurations report the same hits, in {number(len(compared), 'send')}."
    widest = max(differing, key=lambda send: send.spread)
    ends = sorted(widest.known_hits, key=lambda r: r.hit_len or 0)
    return (
        f"hits differ in {len(differing)} of {number(len(compared), 'send')}, by up to {widest.spread} tokens: "
        f"{widest.name} ({_lengths(widest)}): {_answer(ends[0])}; {_answer(ends[-1])}."
    )


def _lengths(send: SendView) -> str:
    lcp = span(r.lcp_len for r in send.requests)
    return f"{span(r.prompt_len for r in send.requests)} tokens, {lcp} of them seen before"


def _answer(request: RequestRecord) -> str:
    """A configuration's hit, and why it is not longer."""
    causes = [item for item in ledger_items(request) if not item.startswith(Cause.REUSED.value)]
    return f"{plain(request.engine_label)} {count(request.hit_len)} ({', '.join(causes) or 'all reused'})"


def machine_lines(run: Run) -> list[tuple[str, str]]:
    """The machine's facts with readable names and units."""
    return [
        (key.removesuffix("_bytes").replace("_", " "), _machine_value(key, value))
        for key, value in run.manifest.machine.items()
    ]


def _engine_line(c: Configuration) -> EngineLine:
    return EngineLine(
        label=plain(c.label),
        engine=plain(c.engine),
        version=plain(c.version),
        mode=c.mode,
        device=plain(c.device),
        granule=None if c.granule == UNKNOWN else int(c.granule),
        law=plain(c.law),
        notes=tuple(plain(note) for note in c.notes),
    )


def _workload_line(view: WorkloadView) -> WorkloadLine:
    compared = [send for send in view.sends if len(send.known_hits) > 1]
    return WorkloadLine(
        workload=view.workload,
        model=view.model,
        sends=len(compared),
        differing_sends=sum(bool(send.spread) for send in compared),
        widest_tokens=max((send.spread for send in compared), default=0),
        difference=difference(view),
    )


def _total_line(summary: EngineSummary) -> TotalLine:
    return TotalLine(
        label=summary.label,
        model=summary.model,
        requests=summary.requests,
        prompt_tokens=summary.prompt_tokens,
        tokens_by_cause=_in_order(summary.by_cause),
        reused_tokens=summary.reused,
        reused_share=summary.share,
        unexplained_tokens=summary.unexplained,
        cold_ttft_ns=summary.cold_ns,
        warm_ttft_ns=summary.warm_ns,
        findings={kind: summary.findings[kind] for kind in FindingKind if summary.findings[kind]},
    )


def _finding_line(remark: Remark) -> FindingLine:
    return FindingLine(
        label=remark.label, model=remark.model, where=remark.where, kind=remark.kind, detail=remark.detail
    )


def _not_explained(run: Run, summaries: Sequence[EngineSummary]) -> list[str]:
    if not run.requests:
        return ["No request was answered, so nothing can be said."]
    return [
        *unfinished_cells(run.cells, run.requests, run.manifest.cells),
        *invalid_cells(run.cells),
        *(f"{s.label} on {s.model}: {number(s.unexplained, 'token')} unexplained" for s in summaries if s.unexplained),
        *(gap for summary in summaries for gap in summary.gaps),
    ]


def _cell_lines(run: Run) -> list[CellLine]:
    """In the planned order; a cell that was killed is known by its requests only."""
    manifests = {cell.cell: cell for cell in run.cells}
    of_cell: dict[str, list[RequestRecord]] = {}
    for request in run.requests:
        of_cell.setdefault(request.cell, []).append(request)
    return [
        _cell_line(cell_id, manifests.get(cell_id), of_cell.get(cell_id, []))
        for cell_id in dict.fromkeys([*run.manifest.cells, *manifests])
    ]


def _cell_line(cell_id: str, cell: CellManifest | None, requests: Sequence[RequestRecord]) -> CellLine:
    probes = [r for r in requests if r.role is Role.PROBE]
    totals: Counter[Cause] = Counter()
    for request in probes:
        totals.update(request.by_cause())
    first = requests[0] if requests else None
    named = cell or first
    return CellLine(
        cell=plain(cell_id),
        label=plain(named.engine_label) if named else "",
        engine=plain(first.engine if first else cell.engine if cell else ""),
        model=plain(named.model) if named else "",
        workload=plain(named.workload) if named else "",
        law=first.law if first else None,
        predicted=first is not None and first.fidelity is Fidelity.LAW,
        status=cell.status if cell else None,
        why=plain(cell.why) if cell else f"killed after {number(len(requests), 'request')}" if requests else "not run",
        valid=cell.valid if cell else False,
        requests=len(probes),
        prompt_tokens=sum(r.prompt_len for r in probes),
        tokens_by_cause=_in_order(totals),
        known_tokens=sum(r.prompt_len for r in probes if r.ledger),
        total_ns=sum(r.total_ns for r in requests),
        findings=tuple(_finding_line(remark) for remark in remarks([cell] if cell else [], requests)),
    )


def _in_order(totals: dict[Cause, int]) -> dict[Cause, int]:
    return {cause: totals[cause] for cause in Cause if totals.get(cause)}


def json_text(value: dict[str, Any]) -> str:
    """JSON that cannot end a Markdown code block."""
    return json.dumps(value, indent=1, sort_keys=True).replace("`", "\\u0060")


def _machine_value(key: str, value: object) -> str:
    if value is None:
        return UNKNOWN
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**30:.1f} GiB"
    return value if isinstance(value, str) else json.dumps(value)


def distinct(values: Iterable[str]) -> list[str]:
    """Each once, in the order of first appearance."""
    return list(dict.fromkeys(values))
