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

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.simulate.numbering import Numbers
from reference_engine.laws.parts.chained import per_block
from workloads.traces.base import TraceRequest

BESIDE = 1
"""Blocks that hold no whole unit: a prompt's tail takes a block while the request runs."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Tokens hit as a function of the pool's size: sums of ramps, one for each stretch that was used again."""

    unit: int
    """Tokens per block."""
    prompt_tokens: int
    requests: int
    whole: int
    """Prompts that end on a block boundary: without any the curve is exact."""
    _starts: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Pool sizes in blocks, ascending, beyond which another block of some stretch is hit ..."""
    _slopes: np.ndarray[tuple[int], np.dtype[np.int64]]
    """... and how many stretches grow by a block per block from there on."""
    _heights: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Blocks hit at each of them."""

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


def curve(requests: Iterable[tuple[TraceRequest, Numbers]], unit: int) -> Curve:
    """One pass over requests with their block numbers (`feed.numbered`)."""
    last = np.zeros(1024, np.int32)  # of a unit (numbers of its trace block): 1 + the last request that used it
    known = np.zeros(1024, np.int32)  # of a trace block: tokens of it that were ever computed
    tree, begins = _Fenwick(), list[int]()
    total = tokens = whole_prompts = count = 0
    starts: list[int] = []
    stops: list[int] = []
    for request, blocks in requests:
        length, block = request.input_len, request.block_len
        units, cap = length // unit, (length - 1) // unit
        tokens += length
        whole_prompts += units > cap
        per = per_block(block, unit)
        most = int(blocks.max(initial=0)) + 1
        if most > len(known):
            known = np.concatenate([known, np.zeros(most, np.int32)])
        if most * per > len(last):
            last = np.concatenate([last, np.zeros(most * per, np.int32)])
        here = known[blocks]
        short = np.flatnonzero(here < block)
        lcp = length if not len(short) else min(length, int(short[0]) * block + int(here[short[0]]))
        resident = lcp // unit
        ends = np.arange(1, units + 1) * unit - 1
        places = blocks[ends // block] * per + ends % block // unit
        if resident:
            owners = last[places[:resident]]
            edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), resident]
            for first, stop in pairwise(edges):
                owner = int(owners[first]) - 1
                above = total - tree.upto(owner) + first  # the `first` units before it have left their places by now
                depth = above + first - begins[owner]
                if min(stop, cap) > first:
                    starts.append(depth)
                    stops.append(depth + min(stop, cap) - first)
                tree.add(owner, first - stop)
                begins[owner] = stop
                total -= stop - first
        tree.append(units)
        begins.append(0)
        total += units
        whole, rest = divmod(length, block)
        last[places] = count + 1
        known[blocks[:whole]] = block
        if rest:
            known[blocks[whole]] = max(rest, int(known[blocks[whole]]))
        count += 1
    return _summed(unit, tokens, count, whole_prompts, starts, stops)


def _summed(unit: int, tokens: int, requests: int, whole: int, starts: list[int], stops: list[int]) -> Curve:
    places = np.concatenate([np.asarray(starts, np.int64), np.asarray(stops, np.int64)])
    steps = np.concatenate([np.ones(len(starts), np.int64), -np.ones(len(stops), np.int64)])
    edges, back = np.unique(places, return_inverse=True)
    slopes = np.cumsum(np.bincount(back, steps, len(edges)).astype(np.int64)) if len(edges) else np.zeros(0, np.int64)
    heights = np.zeros(len(edges), np.int64)
    if len(edges) > 1:
        heights[1:] = np.cumsum(slopes[:-1] * np.diff(edges))
    return Curve(unit, tokens, requests, whole, edges, slopes, heights)
