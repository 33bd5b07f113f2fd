"""The comparison itself: which cells belong together, what changed in them, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.compare.changes import SendChange, send_change
from harness.compare.latency import (
    LatencyLine,
    Pair,
    latency_group,
    latency_lines,
    latency_warnings,
    pooled,
)
from harness.compare.likeness import Subject, Unlike, refuse_unlike
from harness.compare.quantity import Quantity
from harness.compare.sides import Side
from harness.outcome import INCONCLUSIVE
from harness.records import CellManifest, CellStatus, Finding, RequestRecord, Role
from harness.statistics import Verdict
from harness.wording import number, plain, send_name
from vocabulary.errors import ExitCode, UsageError
from vocabulary.ledger import Cause

EXIT_CODES = {
    Verdict.PASS: ExitCode.CLEAN,
    Verdict.FAIL: ExitCode.FINDINGS,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class CellComparison:
    """One workload on one model, under both configurations."""

    where: str
    sends: int
    """Sends that both sides answered to the same prompt."""
    unlike_sends: int
    """Sends whose prompts depend on the engine, and that have no like partner."""
    silent_sends: int
    """Of `sends`, those in which a side shows no usable hit or start."""
    base_reused: int | None
    """Tokens reused in the compared sends that have a ledger on both sides; None where none has."""
    candidate_reused: int | None
    changes: tuple[SendChange, ...]
    new_findings: tuple[str, ...]
    """Findings of the candidate that the base does not have."""
    differing: tuple[Unlike, ...]
    """What the comparison is about."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything a comparison says."""

    base: str
    candidate: str
    about: tuple[Subject, ...]
    verdict: Verdict
    why: tuple[str, ...]
    """The sentences behind the verdict, the gravest first."""
    cells: tuple[CellComparison, ...]
    latency: tuple[LatencyLine, ...]
    gaps: tuple[str, ...]
    """What could not be compared."""
    warnings: tuple[str, ...]
    """What makes the times less believable, with the remedy."""

    @property
    def exit_code(self) -> ExitCode:
        """Of the command."""
        return EXIT_CODES[self.verdict]

    @property
    def changes(self) -> list[SendChange]:
        """Of all cells."""
        return [change for cell in self.cells for change in cell.changes]


def compare(
    base: Side,
    candidate: Side,
    *,
    about: frozenset[Subject] = frozenset(),
    max_slowdown: float | None = None,
    discard: int = 0,
    times: Sequence[Quantity] = (Quantity.TTFT,),
) -> Comparison:
    """Compare two sides; `max_slowdown` 0.05 allows `times` 5 % longer, `discard` pairs of each cell are not timed.

    The n-th process start of one side stands against the n-th of the other.

    Raises UsageError where the sides differ in anything the comparison is not about.
    """
    matched, gaps = _matched_cells(base, candidate)
    subject = next((s.value for s in Subject if about == {s}), "candidate")
    cells: list[CellComparison] = []
    of_starts: dict[tuple[str, str], list[list[Pair]]] = {}
    for (where, place), one, other in matched:
        differing = refuse_unlike(one, other, about)
        pairs, alone = _pairs(place, base.requests(one), candidate.requests(other), _granules_differ(one, other))
        probes = [pair for pair in pairs if pair[0].role is Role.PROBE]
        cells.append(_cell(place, one, other, pairs, probes, alone, differing, subject))
        for cell, side in ((one, base), (other, candidate)):
            if not cell.valid:
                gaps.append(f"{place}: {side.name}: the cell is invalid, its numbers support no verdict")
        of_starts.setdefault((where, plain(f"{one.engine_label} on {one.model}")), []).append(pairs)
    timed = [
        latency_group(where, pool, state, quantity, starts, discard)
        for quantity in times
        for (where, pool), starts in of_starts.items()
        for state in ("cold", "warm")
    ]
    groups = pooled([group for group in timed if group])
    gaps += _untimed(times, {group.quantity for group in groups}) if max_slowdown is not None else []
    lines = latency_lines(groups, max_slowdown)
    verdict, why = _verdict(cells, lines, gaps)
    return Comparison(
        base=base.name,
        candidate=candidate.name,
        about=tuple(s for s in Subject if s in about),
        verdict=verdict,
        why=tuple(why),
        cells=tuple(cells),
        latency=tuple(lines),
        gaps=tuple(gaps),
        warnings=tuple(latency_warnings(groups, lines, (base.run, candidate.run))),
    )


def _untimed(wanted: Sequence[Quantity], found: set[Quantity]) -> list[str]:
    """A sentence for each quantity that a verdict was asked about and that no pair has."""
    remedy = {Quantity.TPOT: "give the workload max_tokens = 2 or more"}
    return [
        f"no pair of requests has a {quantity.name_in_text} on both sides; "
        f"{remedy.get(quantity, 'time served engines that show their hits, or leave --max-slowdown out')}"
        for quantity in wanted
        if quantity not in found
    ]


Place = tuple[str, str]
"""Workload and model in words, and the same with the number of the process start where there are several."""
CellOf = dict[tuple[str, str, str, int], CellManifest]


def _by_place(side: Side, single: bool) -> CellOf:
    """Cells by engine configuration, model, workload, and process start from 1."""
    found: CellOf = {}
    for cell in side.cells:
        start = 1
        while (key := ("" if single else cell.engine_label, cell.model, cell.workload, start)) in found:
            start += 1
        found[key] = cell
    return found


def _matched_cells(base: Side, candidate: Side) -> tuple[list[tuple[Place, CellManifest, CellManifest]], list[str]]:
    """Pairs of complete cells with their name, and a sentence for each that did not complete."""
    single = len(base.labels) == len(candidate.labels) == 1
    if not single and base.labels != candidate.labels and {*base.labels} != {*candidate.labels}:
        raise UsageError(
            f"engine configurations differ: {base.name} has {', '.join(base.labels) or 'none'}; {candidate.name} has "
            f"{', '.join(candidate.labels) or 'none'}; name one of each as RUN:label"
        )
    gaps = [sentence for side in (base, candidate) for sentence in _unfinished(side)]
    tables = [_by_place(side, single) for side in (base, candidate)]
    several = {key[:3] for table in tables for key in table if key[3] > 1}
    matched = []
    for key in dict.fromkeys([*tables[0], *tables[1]]):
        one, other = (table.get(key) for table in tables)
        label, model, workload, start = key
        where = plain(f"{f'{label}, ' if label else ''}{workload} on {model}")
        place = f"{where}, start {start}" if key[:3] in several else where
        if one and other:
            if one.status is other.status is CellStatus.COMPLETE:
                matched.append(((where, place), one, other))
        elif not gaps:  # an unfinished run may still be going to have it
            lacking = candidate.name if one else base.name
            what = "process starts" if start > 1 else "workloads"
            raise UsageError(f"{what} differ: {lacking} has no {place}; run both sides with the same {what}")
        else:
            gaps.append(f"{place}: only one side has it")
    return matched, gaps


def _unfinished(side: Side) -> Iterator[str]:
    for cell in side.cells:
        if cell.status is not CellStatus.COMPLETE:
            yield plain(f"{side.name}: {cell.cell}: {cell.status.value}: {cell.why}")
    have = {cell.cell for cell in side.run.cells}
    missing = [cell for cell in side.run.manifest.cells if cell not in have]
    if missing and side.label is None:
        yield f"{side.name}: {number(len(missing), 'planned cell')} not run or killed: {plain(', '.join(missing))}"


def _granules_differ(one: CellManifest, other: CellManifest) -> bool:
    return (one.facts or {}).get("granule") != (other.facts or {}).get("granule")


def _pairs(
    where: str, base: Sequence[RequestRecord], candidate: Sequence[RequestRecord], granules_differ: bool
) -> tuple[list[Pair], int]:
    """Requests to the same prompt, and how many probes have no like partner.

    A prompt may only differ where it is made of the engine's answers or of its granule; UsageError otherwise.
    """
    tables = [_by_send(requests) for requests in (base, candidate)]
    pairs, alone, answers_differ = [], 0, False
    for key in dict.fromkeys([*tables[0], *tables[1]]):
        one, other = (table.get(key) for table in tables)
        role, label, repetition, _ = key
        if one is None or other is None:
            if role is Role.PROBE:
                if not granules_differ and not answers_differ:
                    raise UsageError(f"{where}: sends differ: only one side has {label!r}, send {repetition + 1}")
                alone += 1
        elif one.prompt_sha256 == other.prompt_sha256:
            pairs.append((one, other))
            answers_differ = answers_differ or one.answer != other.answer
        elif role is Role.PROBE:
            if not granules_differ and not answers_differ:
                raise UsageError(
                    f"{where}: prompt_sha256 differs: {one.prompt_sha256[:12]} and {other.prompt_sha256[:12]} of send "
                    f"{send_name(one)!r}; the same workload and seed must give the same prompts: was the workload's "
                    f"code or tokenizer changed?"
                )
            alone += 1
    return pairs, alone


def _by_send(requests: Sequence[RequestRecord]) -> dict[tuple[Role, str, int, int], RequestRecord]:
    found: dict[tuple[Role, str, int, int], RequestRecord] = {}
    for request in requests:
        if request.role is not Role.SENTINEL:
            again = 0
            while (key := (request.role, request.label, request.repetition, again)) in found:
                again += 1
            found[key] = request
    return found


def _cell(
    where: str,
    one: CellManifest,
    other: CellManifest,
    pairs: Sequence[Pair],
    probes: Sequence[Pair],
    alone: int,
    differing: Sequence[Unlike],
    subject: str,
) -> CellComparison:
    known = [pair for pair in probes if pair[0].ledger and pair[1].ledger]
    reused = [sum(pair[side].by_cause().get(Cause.REUSED, 0) for pair in known) for side in (0, 1)]
    changes = [change for a, b in probes if (change := send_change(where, a, b, subject))]
    return CellComparison(
        where=where,
        sends=len(probes),
        unlike_sends=alone,
        silent_sends=len(probes) - len(known),
        base_reused=reused[0] if known else None,
        candidate_reused=reused[1] if known else None,
        changes=tuple(changes),
        new_findings=tuple(_new_findings(where, one, other, pairs)),
        differing=tuple(differing),
    )


def _new_findings(where: str, one: CellManifest, other: CellManifest, pairs: Sequence[Pair]) -> Iterator[str]:
    """Kinds that the base does not have at the same place; numbers in the details may differ."""
    yield from _added(where, one.findings, other.findings)
    for base, candidate in pairs:
        yield from _added(f"{where}, {send_name(candidate)}", base.findings, candidate.findings)


def _added(place: str, base: Sequence[Finding], candidate: Sequence[Finding]) -> Iterator[str]:
    had = {finding.kind for finding in base}
    for finding in candidate:
        if finding.kind not in had and finding.kind not in INCONCLUSIVE:
            yield f"{place}: {finding.kind.value}: {plain(finding.detail)}"


def _verdict(
    cells: Sequence[CellComparison], lines: Sequence[LatencyLine], gaps: Sequence[str]
) -> tuple[Verdict, list[str]]:
    changes = [change for cell in cells for change in cell.changes]
    sends, findings = sum(cell.sends for cell in cells), sum(len(cell.new_findings) for cell in cells)
    failed = [f"{number(len(changes), 'send')} of {sends} changed: {_amount(changes)}"] if changes else []
    failed += [f"the candidate has {number(findings, 'new finding')}"] if findings else []
    failed += [f"{line.name}: {line.sentence}" for line in lines if line.verdict is Verdict.FAIL]
    open_ = [*gaps]
    open_ += [f"{line.name}: {line.sentence}" for line in lines if line.verdict is Verdict.INCONCLUSIVE]
    open_ += [] if sends else ["no send could be compared"]
    silent = sum(cell.silent_sends for cell in cells)
    open_ += [f"{number(silent, 'send')} without hit or start on one side"] if silent else []
    if failed:
        return Verdict.FAIL, [*failed, *open_]
    if open_:
        return Verdict.INCONCLUSIVE, open_
    passed = [f"all integers of {number(sends, 'send')} are the same"]
    passed += [f"{line.name}: {line.sentence}" for line in lines if line.verdict is Verdict.PASS]
    return Verdict.PASS, passed


def _amount(changes: Sequence[SendChange]) -> str:
    less = [change.less for change in changes if change.less is not None and change.less > 0]
    more = [-change.less for change in changes if change.less is not None and change.less < 0]
    parts = [f"{len(less)} reuse less, by up to {max(less)} tokens"] if less else []
    parts += [f"{len(more)} reuse more, by up to {max(more)} tokens"] if more else []
    other = len(changes) - len(less) - len(more)
    parts += [f"{other} with other numbers or causes"] if other else []
    return "; ".join(parts)
