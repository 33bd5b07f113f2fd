"""Full attention alone, for prompts of a trace one after another: the law by stretches instead of blocks.

Requests that never overlap give their blocks back as one, tail first, and the pool hands out what came back longest
ago. So a prompt's blocks that nobody has used since are one stretch of it, eviction shortens the oldest stretch from
behind, and a hit takes over the begin of some stretches. One request costs a few of them, however long it is. What is
found, evicted and booked is what `VllmLaw` says, to the token; tests/laws/test_vllm_serial.py holds them together.

A prompt that ends on a block boundary and was there as a whole computes its last block again (the cap of L-1), and
the pool then holds it twice. The older copy answers as long as it is there.

Memory: 4 bytes per distinct block of the trace and namespace, 24 per request.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from reference_engine.laws.base import Expectation, Slots
from reference_engine.laws.parts.chained import ChainedRequest, longer
from reference_engine.laws.vllm.plan import Plan
from vocabulary.engine import TokenRequest
from vocabulary.ledger import Cause, Ledger

NO_LIMIT = 1 << 62


class Known:
    """Who used each block of the trace last, in one namespace: 0 nobody, else `-1 - request`.

    Along a prompt these numbers ascend, since who used a block used all before it.
    """

    def __init__(self) -> None:
        self._users = np.zeros(1024, np.int32)

    def users(self, blocks: Slots) -> list[int]:
        """Of each block."""
        try:
            users: list[int] = self._users.take(blocks).tolist()
        except IndexError:
            self._users = longer(self._users, int(blocks.max()) + 1)
            users = self._users.take(blocks).tolist()
        return users

    def use(self, blocks: Slots, request: int) -> None:
        """A request is the last user of these."""
        self._users[blocks] = -1 - request


class Serial:
    """One pool, from its first request on."""

    def __init__(self, plan: Plan) -> None:
        """`plan`: one that `covered` is true for."""
        self._plan, self._unit, self._kind = plan, plan.unit, plan.kinds[0].text
        self._usable = NO_LIMIT if plan.num_blocks is None else plan.num_blocks - 1
        self._known: dict[tuple[str | None, str | None], Known] = {}
        self._lengths = array("q")
        """Tokens of each request's prompt."""
        self._begins, self._ends = array("q"), array("q")
        """Places of its blocks that nobody has used since and that are still in the pool."""
        self._older: dict[int, list[int]] = {}
        """Of a request: earlier ones with its last block that were longer, or hold that block too; longest last."""
        self._held = 0
        self._oldest = 0
        """No request before it holds a block."""

    @staticmethod
    def covered(plan: Plan) -> bool:
        """Full attention alone, looked up, without a drafter."""
        return plan.plain and plan.caching and not plan.drafts

    def serve(self, request: TokenRequest, output_ids: Sequence[int]) -> Expectation:
        """`VllmLaw.send` and `finish` in one, for a request by blocks and one generated token. Raises what they raise."""
        assert isinstance(request, ChainedRequest)
        chain, unit = request.chain, self._unit
        blocks, block, length = chain.blocks, chain.block_len, chain.prompt_len
        self._plan.check(length, request.max_tokens)
        if length > self._usable * unit:
            raise self._plan.no_room(-(-length // unit), self._usable)
        space = self._plan.space(request)
        known = self._known.get(space)
        if known is None:
            known = self._known[space] = Known()
        users = known.users(blocks)
        lcp, last = self._shared(users, block, length), length - 1
        anywhere = lcp
        if len(self._known) > 1:
            anywhere = max(self._shared(each.users(blocks), block, length) for each in self._known.values())
        hit = self._take(users, block, min(lcp, last) // unit)
        number = len(self._lengths)
        self._note_older(users[-1], block, length)
        known.use(blocks, number)
        self._lengths.append(length)
        self._begins.append(0)
        whole, rest = divmod(length, unit)
        blank = rest > 0  # the tail's block never gets a key
        queued = whole + (blank and not self._plan.switches.sorts_freed)
        self._ends.append(queued)
        self._held += queued - hit
        excess = self._held - self._usable + (blank and self._plan.switches.sorts_freed)
        if excess > 0:
            self._evict(excess)
        hit *= unit
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

    def _shared(self, users: list[int], block: int, length: int) -> int:
        """Tokens of the prompt that some request had."""
        used = bisect_left(users, 0)
        if not used:
            return 0
        user = -1 - users[used - 1]
        longest = self._lengths[self._older[user][-1] if user in self._older else user]
        return min(max(longest, self._lengths[user]), used * block, length)

    def _take(self, users: list[int], block: int, most: int) -> int:
        """Take the first `most` blocks of the prompt out of the stretches that hold them; gives how many there are."""
        at = taken = 0
        unit, begins, ends, lengths = self._unit, self._begins, self._ends, self._lengths
        while taken < most:
            user = -1 - users[at]
            at = bisect_right(users, users[at], at)
            stop = min(at * block // unit, most)
            if user in self._older and lengths[user] <= at * block:
                taken = self._take_oldest([user, *self._older[user]], taken, stop)
            elif (reached := min(ends[user], lengths[user] // unit, stop)) > taken:
                taken = begins[user] = reached
            if taken < stop:
                break
        return taken

    def _take_oldest(self, users: list[int], taken: int, stop: int) -> int:
        """As `_take` up to place `stop`, where several users may hold a block: the oldest that does gives its own."""
        while taken < stop:
            holders = [each for each in users if self._begins[each] < self._ends[each]]
            here = [each for each in holders if self._begins[each] <= taken < self._hittable(each)]
            if not here:
                break
            giver = here[-1]
            older = users[users.index(giver) + 1 :]
            until = min([self._begins[each] for each in older if each in holders and self._begins[each] > taken] + [stop])
            taken = self._begins[giver] = min(self._hittable(giver), until)
        return taken

    def _hittable(self, request: int) -> int:
        return min(self._ends[request], self._lengths[request] // self._unit)

    def _note_older(self, user: int, block: int, length: int) -> None:
        """A request of `length` tokens comes, after this user of its last block."""
        if user == 0:
            return
        user, lengths = -1 - user, self._lengths
        ends_here = lengths[user] <= -(-length // block) * block
        more = [
            each
            for each in (user, *(self._older.pop(user, ()) if ends_here else ()))
            if lengths[each] > length or (lengths[each] == length and self._begins[each] < self._ends[each])
        ]
        if more:
            self._older[len(lengths)] = more

    def _evict(self, excess: int) -> None:
        begins, ends, oldest = self._begins, self._ends, self._oldest
        self._held -= excess
        while excess:
            here = min(ends[oldest] - begins[oldest], excess)
            ends[oldest] -= here
            excess -= here
            if excess:
                oldest += 1
        self._oldest = oldest
