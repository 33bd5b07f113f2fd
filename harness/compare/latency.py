"""Times of the same prompts under both configurations, cold and warm apart.

Cold pairs had hit 0 on both sides, warm pairs a hit on both; a prompt that is warm on one side only is a changed
ledger, not a latency. Controls are cold runs of the workload's prompts and count as such.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.compare.quantity import Quantity
from harness.records import RequestRecord
from harness.statistics import CONFIDENCE, MIN_PAIRS, MIN_STARTS, PairedRatio, Verdict, decide, paired_ratio
from harness.store import Run
from harness.wording import is_unusable
from vocabulary.engine import Fidelity
from workloads.families.pairs import WARM_UP

WIDE_SPREAD = 0.10
"""Single pairs that lie apart by more make the interval wide, and show that something else uses the machine."""
FIRST_APART = 1.25
"""A first pair this many times off the others is a start-up effect of one side."""
STEADY_CLOCKS = frozenset({"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"})
"""Linux clock sources that are read without a system call and run evenly."""
COARSE_NS = 100_000
"""Times that are all multiples of this come from a clock too coarse for a TTFT."""
POWERFUL = 20
"""Pairs that show a shift as large as the spread of single pairs in 19 of 20 comparisons (docs/comparing.md)."""

LISTED = 3
"""Groups named in one warning."""

Pair = tuple[RequestRecord, RequestRecord]


@dataclass(frozen=True, slots=True)
class LatencyGroup:
    """Pairs that belong together."""

    quantity: Quantity

    where: str
    pool: str
    """Engine configuration and model: small groups of one pool are judged together."""
    state: str
    """"cold" or "warm"."""
    base_ns: tuple[int, ...]
    """In the order they were sent."""
    candidate_ns: tuple[int, ...]
    starts: tuple[int, ...]
    """Process start of each pair."""

    @property
    def name(self) -> str:
        """As warnings and verdicts call it."""
        return f"{self.where}, {self.state} {self.quantity.name_in_text}"


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """One group's ratio, and the verdict where a threshold was given."""

    name: str
    """Workload and model, state, and quantity."""
    where: str
    state: str
    quantity: Quantity
    base_ns: int
    """Median of the base."""
    candidate_ns: int
    """Median of the candidate."""
    ratio: PairedRatio
    verdict: Verdict | None
    """None: no threshold was given."""
    sentence: str


def latency_group(
    where: str, pool: str, state: str, quantity: Quantity, of_starts: Sequence[Sequence[Pair]], discard: int
) -> LatencyGroup | None:
    """The timed pairs of one state, without the first `discard` of each process start; None where there are none."""
    kept: list[tuple[int, int, int]] = []
    for start, pairs in enumerate(of_starts):
        timed = [pair for pair in pairs if all(_usable(request) for request in pair) and _state(pair) == state]
        for one, other in timed[discard:]:
            before, after = quantity.of(one), quantity.of(other)
            if before and after:
                kept.append((before, after, start))
    if not kept:
        return None
    base, candidate, starts = zip(*kept, strict=True)
    return LatencyGroup(quantity, where, pool, state, base, candidate, starts)


def _usable(request: RequestRecord) -> bool:
    served = request.fidelity is Fidelity.SERVED and not is_unusable(request)
    return served and request.hit_len is not None and WARM_UP not in request.label


def _state(pair: Pair) -> str:
    hits = {bool(request.hit_len) for request in pair}
    return "mixed" if len(hits) > 1 else "warm" if hits.pop() else "cold"


def pooled(groups: Sequence[LatencyGroup]) -> list[LatencyGroup]:
    """Groups that are large enough, and the small ones of one configuration, model and state together."""
    small: dict[tuple[str, str, Quantity], list[LatencyGroup]] = {}
    for group in groups:
        if len(group.base_ns) < MIN_PAIRS:
            small.setdefault((group.pool, group.state, group.quantity), []).append(group)
    large = [group for group in groups if len(group.base_ns) >= MIN_PAIRS]
    return large + [_together(members) for members in small.values()]


def _together(members: Sequence[LatencyGroup]) -> LatencyGroup:
    if len(members) == 1:
        return members[0]
    return replace(
        members[0],
        where=f"{members[0].pool}, {len(members)} small workloads",
        base_ns=tuple(time for group in members for time in group.base_ns),
        candidate_ns=tuple(time for group in members for time in group.candidate_ns),
        starts=tuple(start for group in members for start in group.starts),
    )


def latency_lines(groups: Sequence[LatencyGroup], max_slowdown: float | None) -> list[LatencyLine]:
    """A line per group. The intervals get wider with their number, so that all of them hold together at 95 %."""
    confidence = 1 - (1 - CONFIDENCE) / max(len(groups), 1)
    lines = []
    for group in groups:
        ratio = paired_ratio(group.base_ns, group.candidate_ns, confidence=confidence, starts=group.starts)
        verdict, sentence = decide(ratio, max_slowdown) if max_slowdown is not None else (None, ratio.change)
        before, after = (round(statistics.median(times)) for times in (group.base_ns, group.candidate_ns))
        lines.append(
            LatencyLine(
                name=group.name,
                where=group.where,
                state=group.state,
                quantity=group.quantity,
                base_ns=before,
                candidate_ns=after,
                ratio=ratio,
                verdict=verdict,
                sentence=sentence,
            )
        )
    return lines


def latency_warnings(groups: Sequence[LatencyGroup], lines: Sequence[LatencyLine], runs: Sequence[Run]) -> list[str]:
    """What makes the times less believable, each with its remedy."""
    return [*_of_groups(groups, lines), *_of_machines(groups, runs)] if groups else []


def _of_groups(groups: Sequence[LatencyGroup], lines: Sequence[LatencyLine]) -> Iterator[str]:
    few, wide, late = [], [], []
    for group, line in zip(groups, lines, strict=True):
        name = group.name
        if line.ratio.pairs < MIN_PAIRS:
            few.append(f"{name}: {line.ratio.pairs}")
        if line.ratio.spread > WIDE_SPREAD:
            wide.append(f"{name}: {100 * line.ratio.spread:.0f} %")
        logs = [math.log(b / a) for a, b in zip(group.base_ns, group.candidate_ns, strict=True)]
        if len(logs) > 2 and (first := math.exp(abs(logs[0] - statistics.median(logs[1:])))) > FIRST_APART:
            late.append(f"{name}: {first:.1f} times")
    if few:
        yield (
            f"too few pairs ({_listed(few)}): a verdict needs {MIN_PAIRS}, and {POWERFUL} to see small shifts; give "
            f"the workload more prompts or more sends"
        )
    if wide:
        yield (
            f"single pairs lie far apart ({_listed(wide)}): something else uses the machine, or the prompts are too "
            f"short to time; stop other work, pin the engine to cores, use longer prompts"
        )
    if late:
        yield (
            f"the first pair lies off the others ({_listed(late)}), as a first request after a start does; leave it "
            f"out with --discard 1"
        )


def _listed(items: Sequence[str]) -> str:
    more = f"; and {len(items) - LISTED} more" if len(items) > LISTED else ""
    return "; ".join(items[:LISTED]) + more


def _of_machines(groups: Sequence[LatencyGroup], runs: Sequence[Run]) -> Iterator[str]:
    first, second = (run.manifest.machine for run in runs)
    for key in ("processor", "cores", "instructions"):
        if first.get(key) != second.get(key):
            yield (
                f"machines differ in {key} ({first.get(key)!r} and {second.get(key)!r}): times compare machines, not "
                f"engines; run both sides on one machine"
            )
    for clock in dict.fromkeys(run.manifest.machine.get("clock_source") for run in runs):
        if clock is None:
            yield "a run did not record its clock source; run again with this hitparity to know it"
        elif clock not in STEADY_CLOCKS:
            yield f"clock source {clock} is slow and may jump; boot with clocksource=tsc, or trust large shifts only"
    times = [time for group in groups for time in (*group.base_ns, *group.candidate_ns)]
    if all(time % COARSE_NS == 0 for time in times):
        yield f"all times are multiples of {COARSE_NS / 1e6:g} ms: the clock is coarse; trust only much larger shifts"
    starts = min(len(set(group.starts)) for group in groups)
    if starts < MIN_STARTS:
        yield (
            f"each side was started {'once' if starts == 1 else 'twice'}: what one start has and another has not is in "
            f"no interval; give the engine `starts = {MIN_STARTS}` or more in the experiment, or swap the order, start "
            f"again, and believe a shift that comes back"
        )
