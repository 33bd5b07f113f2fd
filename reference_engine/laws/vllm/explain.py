"""Why a hit is not longer: ceilings in the order in which they lower it, each group alone, and the next sibling."""

from __future__ import annotations

from typing import NamedTuple

from reference_engine.laws.base import Expectation
from reference_engine.laws.parts.chained import Tokens
from reference_engine.laws.parts.history import History
from reference_engine.laws.vllm.find import Cut
from reference_engine.laws.vllm.plan import GroupPlan, Plan
from vocabulary.groups import Kind
from vocabulary.ledger import Cause, Ledger

CUT_CAUSES = {Kind.FULL: Cause.GRANULE, Kind.SWA: Cause.WINDOW, Kind.GDN: Cause.NO_STATE}
"""Full attention keeps every whole block, so what it lacks without eviction lies inside a block."""


class Looked(NamedTuple):
    """A prompt and what the look-up gave."""

    ids: Tokens
    space: str
    length: int
    hit: int | None
    """None: the look-up was skipped."""
    longest: int
    """Deepest single result."""
    cuts: tuple[Cut, ...]
    """What shortened the hit, or would have if nothing had been evicted."""
    evicted: bool
    """Whether anything has been."""
    alone: dict[str, int]
    """Reuse each kind of group alone would allow, by its text."""
    backed: int
    """Tokens below which every group holds the hit."""


def explain(plan: Plan, history: History, looked: Looked) -> Expectation:
    """The expectation of one request."""
    hit, align = looked.hit or 0, plan.alignment
    lcp, last = history.lcp(looked.ids, looked.space), looked.length - 1
    elsewhere, cap = history.lcp_elsewhere(looked.ids, looked.space), min(lcp, last)
    ceilings = [(Cause.NOVEL, max(lcp, elsewhere)), (Cause.NAMESPACE, lcp), (Cause.LAST_TOKEN, last)]
    if looked.hit is None:
        ceilings.append((Cause.DISABLED, 0))
    else:
        ceilings += [(Cause.GRANULE, cap // plan.unit * plan.unit), (Cause.ALIGNMENT, cap // align * align)]
        if plan.lookahead:
            ceilings.append((Cause.SUCCESSOR, min(lcp - plan.lookahead, last) // align * align))
        if plan.drop:
            ceilings += [(Cause.SPEC_DROP, _after_drop(plan, kind, lcp, looked)) for kind in plan.kinds if kind.eagle]
        ceilings += [(CUT_CAUSES[cut.kind.kind], cut.length) for cut in looked.cuts]
        if looked.evicted:
            ceilings.append((Cause.EVICTED, hit))
    # A hit that full attention does not back lies above the ceilings of the sound rule.
    sound = [(cause, ceiling if ceiling > hit else hit) for cause, ceiling in ceilings]
    return Expectation(
        hit_len=hit,
        position_start=hit,
        ledger=Ledger.waterfall(looked.length, sound),
        per_group=looked.alone,
        junction=max(hit, looked.longest // align * align),
        backed_len=looked.backed if looked.backed < hit else None,
    )


def _after_drop(plan: Plan, kind: GroupPlan, lcp: int, looked: Looked) -> int:
    """What an EAGLE group leaves of the shared prefix if it holds all of it."""
    if kind.kind is Kind.GDN:
        return looked.length
    step = plan.margin(kind)
    past = looked.length if plan.switches.bound_by_hashed and plan.hybrid else looked.length - 1
    return max(0, min(lcp, past) // step * step - step) // plan.alignment * plan.alignment
