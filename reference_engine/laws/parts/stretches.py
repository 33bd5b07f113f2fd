"""Whose turn it is to be evicted, for prompts of a trace one after another: stretches instead of blocks.

Requests that never overlap give their blocks back as one, the prompt's tail first, and a pool that hands out what came
back longest ago (vLLM's) ranks blocks by their last request, and within it by the distance from the prompt's begin.
Blocks with one last user are one stretch of its prompt, since who uses a block uses all before it. A request takes the
begins of some stretches and leaves one of its own; eviction shortens the oldest from behind. So a request costs a few
stretches, however long it is.

A prompt that ends on a block boundary and is there as a whole computes its last block again (the cap of L-1), and the
pool then holds it twice. The older one answers as long as it is there (vLLM 0.23.0 to 0.33.0, v1/core/block_pool.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from reference_engine.laws.memory import Slots
from reference_engine.laws.parts.chained import NO_NUMBERS, longer


class Used(NamedTuple):
    """What a request found."""

    lcp: int
    """Tokens of its prompt that some request of its namespace had."""
    anywhere: int
    """Or of any namespace."""
    taken: list[tuple[int, int, int]]
    """Stretches it took, from the prompt's begin on: whose, first block, block behind the last."""


class Users:
    """Who used each block of the trace last, in one namespace: 0 nobody, else `-1 - request`.

    Along a prompt these numbers ascend, since who used a block used all before it.
    """

    def __init__(self) -> None:
        self._users = NO_NUMBERS.astype(np.int32)

    def of(self, blocks: Slots) -> list[int]:
        """Of each block."""
        try:
            users: list[int] = self._users.take(blocks).tolist()
        except IndexError:
            self._users = longer(self._users, int(blocks.max()) + 1)
            users = self._users.take(blocks).tolist()
        return users

    def enter(self, blocks: Slots, request: int) -> None:
        """A request is the last user of these."""
        self._users[blocks] = -1 - request


class Stretches:
    """Blocks of `unit` tokens; requests are counted from 0.

    Memory: 4 bytes per distinct block of the trace and namespace, 24 per request.
    """

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._users: dict[Hashable, Users] = {}
        self._lengths = array("q")
        """Tokens of each prompt."""
        self._begins, self._ends = array("q"), array("q")
        """Places of its blocks that nobody has used since and that have not been evicted."""
        self._older: dict[int, list[int]] = {}
        """Of a request: earlier ones with its last block that were longer, or hold that block too; longest last."""
        self._oldest = 0
        """No request before it holds a block."""

    def use(self, space: Hashable, blocks: Slots, block: int, length: int, behind: int = 0) -> Used:
        """A prompt of `length` tokens in these blocks of the trace, each of `block` tokens, is looked up and kept.

        `space`: its namespace; `behind`: blocks it leaves behind its whole ones, which no other prompt finds.
        """
        known = self._users.get(space)
        if known is None:
            known = self._users[space] = Users()
        users = known.of(blocks)
        lcp = anywhere = self._shared(users, block, length)
        if len(self._users) > 1:
            anywhere = max(self._shared(each.of(blocks), block, length) for each in self._users.values())
        taken = self._take(users, block, min(lcp, length - 1) // self.unit)
        number = len(self._lengths)
        if users[-1]:
            self._note_older(-1 - users[-1], len(blocks) * block, length)
        known.enter(blocks, number)
        self._lengths.append(length)
        self._begins.append(0)
        self._ends.append(length // self.unit + behind)
        return Used(lcp, anywhere, taken)

    def evict(self, count: int) -> None:
        """The next `count` blocks, which are there."""
        begins, ends, oldest = self._begins, self._ends, self._oldest
        while count:
            here = min(ends[oldest] - begins[oldest], count)
            ends[oldest] -= here
            count -= here
            if count:
                oldest += 1
        self._oldest = oldest

    def _shared(self, users: list[int], block: int, length: int) -> int:
        """Tokens of a prompt that some request had."""
        used = bisect_left(users, 0)
        if not used:
            return 0
        user = -1 - users[used - 1]
        longest = self._older[user][-1] if user in self._older else user
        return min(max(self._lengths[user], self._lengths[longest]), used * block, length)

    def _take(self, users: list[int], block: int, most: int) -> list[tuple[int, int, int]]:
        """Take the first `most` blocks of a prompt, as far as they are there."""
        begins, ends, lengths, unit = self._begins, self._ends, self._lengths, self.unit
        stretches: list[tuple[int, int, int]] = []
        at = taken = 0
        while taken < most:
            user = -1 - users[at]
            at = bisect_right(users, users[at], at)
            stop = min(at * block // unit, most)
            if user in self._older and lengths[user] <= at * block:
                several = self._take_oldest([user, *self._older[user]], taken, stop)
                stretches += several
                taken = several[-1][2] if several else taken
            elif (reached := min(ends[user], lengths[user] // unit, stop)) > taken:
                stretches.append((user, taken, reached))
                taken = begins[user] = reached
            if taken < stop:
                break
        return stretches

    def _take_oldest(self, users: list[int], taken: int, stop: int) -> list[tuple[int, int, int]]:
        """As `_take`, blocks `taken` to `stop` that several users may hold: the oldest that does gives its own."""
        stretches: list[tuple[int, int, int]] = []
        begins = self._begins
        while taken < stop:
            here = [each for each in users if begins[each] <= taken < self._end(each)]
            if not here:
                break
            giver = here[-1]
            behind = (begins[each] for each in users if taken < begins[each] < self._end(each))
            reached = min(self._end(giver), stop, *behind)
            stretches.append((giver, taken, reached))
            taken = begins[giver] = reached
        return stretches

    def _end(self, request: int) -> int:
        return min(self._ends[request], self._lengths[request] // self.unit)

    def _note_older(self, user: int, end: int, length: int) -> None:
        """A prompt of `length` tokens comes, whose last block `user` used; the block's end is at `end` tokens."""
        users = [user]
        if self._lengths[user] <= end:
            users += self._older.pop(user, ())
        more = [each for each in users if self._lengths[each] > length or self._doubled(each, length)]
        if more:
            self._older[len(self._lengths)] = more

    def _doubled(self, request: int, length: int) -> bool:
        """Whether a request as long as this one still holds a block that this one computed again."""
        return self._lengths[request] == length and self._begins[request] < self._end(request)
