"""Hit rate of a plain full-attention block cache over all pool sizes, from one pass over the trace.

With requests one after another vLLM ranks blocks by their last use whatever the pool's size (`parts.stretches`): a
stack policy. A block is hit in every pool that is larger than its rank when it is used again (Mattson and others 1970,
https://doi.org/10.1147/sj.92.0078). Blocks of a stretch have ranks one behind another, so the pass keeps the stretches'
lengths in a Fenwick tree by request.

Exact where no prompt ends on a block boundary. One that does takes no block beside its whole ones, and which copy of a
block held twice answers depends on the pool's size; what that moves is a few blocks. Such prompts are counted
(`Curve.whole`). tests/harness/test_simulate_curve.py holds the curve against the law.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.simulate.numbering import Numbers
from reference_engine.laws.parts.stretches import Stretches
from vocabulary.ledger import Cause
from workloads.traces.base import TraceRequest

BESIDE = 1
"""Blocks that hold no whole unit: a prompt's tail takes a block while the request runs."""


Counts = npt.NDArray[np.int64]


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


def curve(requests: Iterable[tuple[TraceRequest, Numbers]], unit: int) -> Curve:
    """One pass over requests with their block numbers (`feed.numbered`)."""
    stretches, tree, starts, stops = Stretches(unit), _Fenwick(), array("q"), array("q")
    fixed = dict.fromkeys((Cause.NOVEL, Cause.NAMESPACE, Cause.LAST_TOKEN, Cause.GRANULE), 0)
    tokens = whole = count = held = 0
    for request, blocks in requests:
        length = request.input_len
        lcp, anywhere, taken = stretches.use((request.namespace, request.lora), blocks, request.block_len, length)
        for user, first, stop in taken:
            # The `first` blocks before it have left their places by now.
            depth = held - tree.upto(user) + first
            starts.append(depth)
            stops.append(depth + stop - first)
            tree.add(user, first - stop)
            held -= stop - first
        tree.append(length // unit)
        held += length // unit
        usable = min(lcp, length - 1)
        fixed[Cause.NOVEL] += length - anywhere
        fixed[Cause.NAMESPACE] += anywhere - lcp
        fixed[Cause.LAST_TOKEN] += lcp - usable
        fixed[Cause.GRANULE] += usable % unit
        tokens += length
        whole += length % unit == 0
        count += 1
    return Curve(unit, tokens, count, whole, fixed, *_summed(np.asarray(starts, np.int64), np.asarray(stops, np.int64)))


def _summed(starts: Counts, stops: Counts) -> tuple[Counts, Counts, Counts]:
    steps = np.repeat(np.array([1, -1]), len(starts))
    edges, back = np.unique(np.concatenate([starts, stops]), return_inverse=True)
    slopes = np.cumsum(np.bincount(back, steps, len(edges)).astype(np.int64)) if len(edges) else np.zeros(0, np.int64)
    heights = np.zeros(len(edges), np.int64)
    if len(edges) > 1:
        heights[1:] = np.cumsum(slopes[:-1] * np.diff(edges))
    return edges, slopes, heights
