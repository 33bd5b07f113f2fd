"""Full attention alone, for prompts of a trace one after another: the law by stretches instead of blocks.

What is found, evicted and booked is what `VllmLaw` says, to the token; tests/laws/test_vllm_serial.py compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from reference_engine.laws.base import Expectation
from reference_engine.laws.parts.chained import ChainedRequest
from reference_engine.laws.parts.stretches import Stretches
from reference_engine.laws.vllm.plan import Plan
from vocabulary.engine import TokenRequest
from vocabulary.ledger import Cause, Ledger


class Serial:
    """One pool, from its first request on."""

    def __init__(self, plan: Plan) -> None:
        """`plan`: one that is `covered`."""
        self._plan, self._kind = plan, plan.kinds[0].text
        self._stretches = Stretches(plan.unit)
        self._usable = sys.maxsize if plan.num_blocks is None else plan.num_blocks - 1
        self._held = 0

    @staticmethod
    def covered(plan: Plan) -> bool:
        """Full attention alone, looked up, without a drafter."""
        return plan.plain and plan.caching and not plan.drafts

    def serve(self, request: TokenRequest, output_ids: Sequence[int]) -> Expectation:
        """`VllmLaw.send` and `finish` in one, for a request known by blocks. Raises what they raise."""
        assert isinstance(request, ChainedRequest)
        plan, length = self._plan, request.chain.prompt_len
        plan.check(length, request.max_tokens)
        blocks = -(-length // plan.unit)
        if blocks > self._usable:
            raise plan.no_room(blocks, self._usable)
        computed = length + max(len(output_ids) - 1, 0)
        wanted, free = -(-computed // plan.unit) - blocks, self._usable - blocks
        if wanted > free:
            self._keep(request, length)
            raise plan.would_preempt(wanted, computed - 1, free)
        return self._keep(request, computed)

    def _keep(self, request: ChainedRequest, computed: int) -> Expectation:
        plan, chain = self._plan, request.chain
        unit, length = plan.unit, chain.prompt_len
        whole, rest = divmod(computed, unit)
        blank = 1 if rest else 0  # it never gets a key, and is handed out first or in its turn
        queued = whole if plan.switches.sorts_freed else whole + blank
        behind = queued - length // unit
        lcp, anywhere, taken = self._stretches.use(plan.space(request), chain.blocks, chain.block_len, length, behind)
        hit = taken[-1][2] if taken else 0
        self._held += queued - hit
        excess = self._held + whole + blank - queued - self._usable
        if excess > 0:
            self._stretches.evict(excess)
            self._held -= excess
        last, hit = length - 1, hit * unit
        ceilings = (
            (Cause.NOVEL, anywhere),
            (Cause.NAMESPACE, lcp),
            (Cause.LAST_TOKEN, last),
            (Cause.GRANULE, min(lcp, last) // unit * unit),
            (Cause.EVICTED, hit),
        )
        return Expectation(
            hit_len=hit,
            position_start=hit,
            ledger=Ledger.waterfall(length, ceilings),
            per_group={self._kind: hit},
            junction=hit,
        )
