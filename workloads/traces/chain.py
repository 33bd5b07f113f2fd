"""Chain keys: a block ID that stands for the whole prefix up to the end of its block.

The key of block n is the wrapping sum over i <= n of mix(ID of i, i): vectorised over any number of requests, equal
for equal prefixes, and for unequal ones equal with chance 2**-64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

STEP = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Of the SplitMix64 generator (Steele, Lea and Flood 2014), whose last stage `mix` is."""


def mix(words: Words) -> Words:
    """A bijection of 64-bit words that spreads every bit over all of them. A new array."""
    mixed = words + np.uint64(STEP)
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def chain_keys(ids: Keys, lengths: npt.NDArray[np.int64]) -> Keys:
    """Keys of many lists at once: `ids` are all lists behind one another, `lengths` how long each is.

    Shapes: `(sum(lengths),)` and `(lists,)` to `(sum(lengths),)`.
    """
    if not len(ids):
        return np.empty(0, np.int64)
    starts = np.cumsum(lengths) - lengths
    depths = np.arange(len(ids), dtype=np.uint64) - np.repeat(starts, lengths).astype(np.uint64)
    sums = np.cumsum(mix(ids.astype(np.int64).view(np.uint64) ^ mix(depths)), dtype=np.uint64)
    before = np.concatenate([np.zeros(1, np.uint64), sums])[starts]
    keys: Keys = (sums - np.repeat(before, lengths)).view(np.int64)
    return keys


def block_keys(ids: npt.NDArray[np.int32] | Keys, block_len: int) -> Keys:
    """Keys at the end of every block of one prompt's token IDs, the last, partial one included."""
    keys = chain_keys(ids.astype(np.int64), np.array([len(ids)], np.int64))
    ends = np.arange(block_len, len(ids) + block_len, block_len)
    return keys[np.minimum(ends, len(ids)) - 1] if len(ids) else keys


class SplitCount:
    """Counts IDs that stand behind more than one prefix. Memory: 17 bytes for each distinct ID."""

    def __init__(self) -> None:
        self._ids, self._keys, self._split = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
        self._new: list[tuple[Keys, Keys]] = []
        self._pending = 0

    def add(self, ids: Keys, keys: Keys) -> None:
        """IDs as the trace has them, and their chain keys; equal shapes."""
        self._new.append((ids, keys))
        self._pending += len(ids)
        if self._pending > max(1 << 18, len(self._ids)):
            self._merge()

    def total(self) -> int:
        """How many IDs there are more than one key for."""
        self._merge()
        return int(np.count_nonzero(self._split))

    def _merge(self) -> None:
        """Keep one key of each ID, and whether another was seen: then two neighbours among its sorted keys differ."""
        ids = np.concatenate([self._ids, *(ids for ids, _ in self._new)])
        order = np.argsort(ids, kind="stable")
        keys = np.concatenate([self._keys, *(keys for _, keys in self._new)])[order]
        ids, split = ids[order], np.zeros(len(ids), np.bool_)
        split[: len(self._split)] = self._split
        split = split[order]
        again = ids[1:] == ids[:-1]
        split[1:] |= again & (keys[1:] != keys[:-1])
        firsts = np.flatnonzero(np.concatenate([np.ones(min(1, len(ids)), np.bool_), ~again]))
        self._ids, self._keys, self._split = ids[firsts], keys[firsts], np.logical_or.reduceat(split, firsts)
        self._new, self._pending = [], 0
