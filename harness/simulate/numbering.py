"""A trace's chain keys (64 bits, any order) to numbers 1, 2, 3, ...: laws index tables by them.

One open-addressed table of two arrays: 12 bytes a slot, at most half full, so about 24 to 48 bytes for a distinct
block where a dictionary takes more than 100. Whole batches are looked up at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]
ZERO = np.uint64(0x6A09E667F3BCC909)
"""Stands for the key 0, which marks an empty slot."""


class Numbering:
    """Numbers of keys, in the order in which batches bring them; equal keys keep their number."""

    def __init__(self) -> None:
        self.count = 0
        """Distinct keys so far."""
        self._make(1 << 14)

    def numbers(self, keys: Keys) -> Numbers:
        """Shape as `keys`."""
        words = keys.view(np.uint64)
        distinct, back = np.unique(np.where(words == 0, ZERO, words), return_inverse=True)
        while 2 * (self.count + len(distinct)) > len(self._keys):
            self._grow()
        numbers = np.zeros(len(distinct), np.int64)
        slots = self._home(distinct)
        todo = np.arange(len(distinct))
        while len(todo):
            wanted, at = distinct[todo], slots[todo]
            empty = self._keys[at] == 0
            self._keys[at[empty]] = wanted[empty]  # of several that want one slot, one gets it
            mine = self._keys[at] == wanted
            new = mine & empty
            fresh = int(np.count_nonzero(new))
            self._numbers[at[new]] = np.arange(self.count + 1, self.count + 1 + fresh)
            self.count += fresh
            numbers[todo[mine]] = self._numbers[at[mine]]
            todo = todo[~mine]
            slots[todo] = (slots[todo] + 1) & self._mask
        return numbers[back]

    def _make(self, size: int) -> None:
        self._keys = np.zeros(size, np.uint64)
        self._numbers = np.zeros(size, np.int32)
        self._mask = size - 1

    def _home(self, words: npt.NDArray[np.uint64]) -> Numbers:
        mixed = words * np.uint64(0x9E3779B97F4A7C15)
        return (mixed >> np.uint64(32)).astype(np.int64) & self._mask

    def _grow(self) -> None:
        keys, numbers = self._keys, self._numbers
        full = keys != 0
        keys, numbers = keys[full], numbers[full]
        self._make(2 * len(self._keys))
        slots = self._home(keys)
        todo = np.arange(len(keys))
        while len(todo):
            at = slots[todo]
            empty = self._keys[at] == 0
            self._keys[at[empty]] = keys[todo][empty]
            mine = self._keys[at] == keys[todo]
            self._numbers[at[mine]] = numbers[todo[mine]]
            todo = todo[~mine]
            slots[todo] = (slots[todo] + 1) & self._mask
