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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from harness.simulate.numbering import Numbers
from reference_engine.laws.parts.chained import Chained, ChainedHistory, per_block
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
        self._last = np.zeros(1024, np.int32)  # of a unit (numbers of its trace block): 1 + the last request with it
        self._tree, self._begins = _Fenwick(), array("q")
        self._total = 0

    def use(self, blocks: Numbers, block: int, units: int, resident: int, cap: int) -> int:
        """A request of `units` whole units, `resident` of which were there before and `cap` may be hit.

        Gives the units hit in the pool of `size`.
        """
        per, most = per_block(block, self.unit), int(blocks.max(initial=0)) + 1
        if most * per > len(self._last):
            self._last = np.concatenate([self._last, np.zeros(most * per, np.int32)])
        places: Counts
        if block % self.unit == 0:
            places = (blocks[: -(-units // per), None] * per + np.arange(per)).reshape(-1)[:units]
        else:
            ends = np.arange(1, units + 1) * self.unit - 1
            places = blocks[ends // block] * per + ends % block // self.unit
        hit, owners = 0, self._last[places[:resident]]
        edges = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), resident] if resident else []
        for first, stop in pairwise(edges):
            owner = int(owners[first]) - 1
            # The `first` units before it have left their places by now.
            depth = self._total - self._tree.upto(owner) + 2 * first - self._begins[owner]
            if (hittable := min(stop, cap) - first) > 0:
                self.starts.append(depth)
                self.stops.append(depth + hittable)
                hit += max(0, min(self.size - depth, hittable))
            self._tree.add(owner, first - stop)
            self._begins[owner] = stop
            self._total -= stop - first
        self._tree.append(units)
        self._begins.append(0)
        self._total += units
        self._last[places] = len(self._begins)
        return hit


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
    fixed = dict.fromkeys((Cause.NOVEL, Cause.LAST_TOKEN, Cause.GRANULE), 0)
    stack, history = _Stack(unit, NO_LIMIT if pool is None else pool - BESIDE), ChainedHistory()
    tokens = whole = count = 0
    for request, blocks in requests:
        length = request.input_len
        chain = Chained(blocks, request.block_len, length, 0, length)
        lcp = history.lcp(chain)
        history.add(chain)
        cap, resident = (length - 1) // unit, lcp // unit
        hit = stack.use(blocks, request.block_len, length // unit, resident, cap)
        ceilings = ((Cause.NOVEL, lcp), (Cause.LAST_TOKEN, length - 1), (Cause.GRANULE, min(resident, cap) * unit))
        left = length
        for cause, ceiling in ceilings:
            if ceiling < left:
                fixed[cause] += left - ceiling
                left = ceiling
        if each is not None:
            each(request, Ledger.waterfall(length, (*ceilings, (Cause.EVICTED, hit * unit))))
        tokens += length
        whole += length // unit > cap
        count += 1
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
