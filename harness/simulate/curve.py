"""Hit rate of a plain full-attention block cache over all pool sizes, from one pass over the trace.

vLLM frees a request's blocks tail first and hands out the block that was freed longest ago. With requests one after
another that ranks blocks by (last request that used them, the nearer to the prompt's begin the better), whatever the
pool's size: a stack policy. A block is hit in every pool that is larger than its rank when it is used again (Mattson
and others 1970, https://doi.org/10.1147/sj.92.0078).

Blocks of one last use are one stretch of that request's prompt, since every later prompt takes over a prefix of it. So
the stack is a list of stretches; their lengths lie in a Fenwick tree by request, and one request costs a few of them,
not its blocks.

Exact where no prompt ends on a block boundary. One that does takes no block beside its whole ones, and where all of it
was there it recomputes its last block (the cap of L-1), of which vLLM then keeps both copies; what that moves is a few
blocks. Such prompts are counted (`Curve.whole`). tests/harness/test_simulate_curve.py holds the curve against the law.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from harness.simulate.numbering import Numbers
from vocabulary.ledger import Cause, Ledger
from workloads.traces.base import TraceRequest

BESIDE = 1
"""Blocks that hold no whole unit: a prompt's tail takes a block while the request runs."""


Counts = npt.NDArray[np.int64]
NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Curve:
    """Tokens hit as a function of the pool's size: sums of ramps, one for each stretch that was used again."""

    unit: int
    """Tokens per block."""
    prompt_tokens: int
    requests: int
    whole: int
    """Prompts that end on a block boundary: without any the curve is exact."""
    _fixed: Mapping[Cause, int]
    """Tokens by the causes that no pool changes."""
    _starts: Counts
    """Pool sizes in blocks, ascending, beyond which another block of some stretch is hit ..."""
    _slopes: Counts
    """... and how many stretches grow by a block per block from there on."""
    _heights: Counts
    """Blocks hit at each of them."""

    def by_cause(self, blocks: int) -> dict[Cause, int]:
        """Tokens by cause in a pool of so many usable blocks; only eviction depends on it."""
        hit = self.hit_tokens(blocks)
        return {**self._fixed, Cause.EVICTED: self.ceiling - hit, Cause.REUSED: hit}

    def hit_tokens(self, blocks: int) -> int:
        """Tokens hit in a pool of so many usable blocks."""
        size = blocks - BESIDE
        at = bisect_right(self._starts, size) - 1
        if at < 0:
            return 0
        return int(self._heights[at] + self._slopes[at] * (size - self._starts[at])) * self.unit

    @property
    def ceiling(self) -> int:
        """Tokens hit in a pool without limit."""
        return int(self._heights[-1]) * self.unit if len(self._heights) else 0

    @property
    def enough(self) -> int:
        """Blocks beyond which nothing more is hit."""
        return int(self._starts[-1]) + BESIDE if len(self._starts) else 0


class _Fenwick:
    """Sums of lengths over requests."""

    def __init__(self) -> None:
        self._tree = [0]

    def append(self, value: int) -> None:
        """The next request's length."""
        at = len(self._tree)
        total, step = value, 1
        while at & step == 0:
            total += self._tree[at - step]
            step <<= 1
        self._tree.append(total)

    def add(self, number: int, value: int) -> None:
        """To request `number`, from 0."""
        at, tree = number + 1, self._tree
        while at < len(tree):
            tree[at] += value
            at += at & -at

    def upto(self, number: int) -> int:
        """Sum of requests 0 to `number`."""
        at, total, tree = number + 1, 0, self._tree
        while at:
            total += tree[at]
            at &= at - 1
        return total


class _Stack:
    """The cache as one list of stretches, from the last used to the first."""

    def __init__(self, unit: int, size: int) -> None:
        self.unit, self.size = unit, size
        self.starts, self.stops = array("q"), array("q")
        self._last = np.zeros(1024, np.int32)  # of a trace block: 1 + the last request with it
        self._older: dict[int, list[int]] = {}  # of a block that such a request ends in: who had more of it, and before
        self._lengths, self._begins, self._tree = array("q"), array("q"), _Fenwick()
        self._total = 0

    def use(self, blocks: Numbers, block: int, length: int) -> tuple[int, int]:
        """A request's tokens that were there before, and its units hit in the pool of `size`."""
        try:
            last = self._last[blocks]
        except IndexError:
            self._last = np.concatenate([self._last, np.zeros(int(blocks.max()) + 1, np.int32)])
            last = self._last[blocks]
        owners: list[int] = (last - 1).tolist()
        seen = len(owners) if owners[-1] >= 0 else owners.index(-1)
        lcp = self._seen(blocks, owners, seen, block, length)
        cap, hit = (length - 1) // self.unit, 0
        for owner, first, stop in self._stretches(blocks, owners[:seen], block, lcp // self.unit):
            # The `first` units before it have left their places by now.
            depth = self._total - self._tree.upto(owner) + 2 * first - self._begins[owner]
            if (hittable := min(stop, cap) - first) > 0:
                self.starts.append(depth)
                self.stops.append(depth + hittable)
                hit += max(0, min(self.size - depth, hittable))
            self._tree.add(owner, first - stop)
            self._begins[owner] = stop
            self._total -= stop - first
        self._enter(blocks, owners[-1], length)
        self._total += length // self.unit
        return lcp, hit

    def _users(self, number: int, owner: int) -> list[int]:
        """Who shares a block: the last request with it, then those before that had more and more of it."""
        return [owner, *self._older.get(number, ())] if self._older else [owner]

    def _seen(self, blocks: Numbers, owners: list[int], seen: int, block: int, length: int) -> int:
        """Tokens of a prompt that some request had, where `seen` of its blocks have an owner."""
        if not seen:
            return 0
        most = self._users(blocks.item(seen - 1), owners[seen - 1])[-1]
        return min(self._lengths[most], seen * block, length)

    def _stretches(
        self, blocks: Numbers, owners: list[int], block: int, resident: int
    ) -> Iterator[tuple[int, int, int]]:
        """Last users of the resident units, in order: request, first unit, unit behind the last."""
        stop = 0
        for at, (owner, following) in enumerate(pairwise([*owners, -1])):
            if owner != following:
                end = min((at + 1) * block // self.unit, resident)
                for each in self._users(blocks.item(at), owner):
                    first, stop = stop, min(self._lengths[each] // self.unit, end)
                    if first < stop:
                        yield each, first, stop

    def _enter(self, blocks: Numbers, before: int, length: int) -> None:
        """The request is the last user of its blocks; `before`: who was that of its last block."""
        if self._older:
            for number in blocks[:-1].tolist():
                self._older.pop(number, None)
        if before >= 0:
            number = blocks.item(-1)
            more = [each for each in self._users(number, before) if self._lengths[each] > length]
            if more:
                self._older[number] = more
            else:
                self._older.pop(number, None)
        self._tree.append(length // self.unit)
        self._begins.append(0)
        self._lengths.append(length)
        self._last[blocks] = len(self._lengths)


def curve(
    requests: Iterable[tuple[TraceRequest, Numbers]],
    unit: int,
    *,
    pool: int | None = None,
    each: Callable[[TraceRequest, Ledger], None] | None = None,
) -> Curve:
    """One pass over requests with their block numbers (`feed.numbered`).

    `each` is given the ledger of every request in a pool of `pool` usable blocks (None: without limit).
    """
    stack = _Stack(unit, NO_LIMIT if pool is None else pool - BESIDE)
    tokens = novel = last_token = granule = whole = count = 0
    for request, blocks in requests:
        length = request.input_len
        lcp, hit = stack.use(blocks, request.block_len, length)
        usable = min(lcp, length - 1)
        ceiling = usable // unit * unit
        novel += length - lcp
        last_token += lcp - usable
        granule += usable - ceiling
        if each is not None:
            ceilings = ((Cause.NOVEL, lcp), (Cause.LAST_TOKEN, usable), (Cause.GRANULE, ceiling))
            each(request, Ledger.waterfall(length, (*ceilings, (Cause.EVICTED, hit * unit))))
        tokens += length
        whole += length % unit == 0
        count += 1
    fixed = {Cause.NOVEL: novel, Cause.LAST_TOKEN: last_token, Cause.GRANULE: granule}
    edges, slopes, heights = _summed(stack)
    return Curve(unit, tokens, count, whole, fixed, edges, slopes, heights)


def _summed(stack: _Stack) -> tuple[Counts, Counts, Counts]:
    starts, stops = np.asarray(stack.starts, np.int64), np.asarray(stack.stops, np.int64)
    steps = np.repeat(np.array([1, -1]), len(starts))
    edges, back = np.unique(np.concatenate([starts, stops]), return_inverse=True)
    slopes = np.cumsum(np.bincount(back, steps, len(edges)).astype(np.int64)) if len(edges) else np.zeros(0, np.int64)
    heights = np.zeros(len(edges), np.int64)
    if len(edges) > 1:
        heights[1:] = np.cumsum(slopes[:-1] * np.diff(edges))
    return edges, slopes, heights
