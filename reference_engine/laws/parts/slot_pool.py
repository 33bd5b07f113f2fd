"""Numbered pages or slots that nobody owns yet."""

from __future__ import annotations

import numpy as np

from reference_engine.laws.base import PoolExhausted, Slots


class SlotPool:
    """Free numbers of a pool of `size`; None hands out new numbers for ever (prediction only)."""

    def __init__(self, size: int | None, what: str = "pages") -> None:
        self.size, self._what = size, what
        self.clear()

    def clear(self) -> None:
        """All are free."""
        self._next = 0
        self._returned: Slots = np.empty(0 if self.size is None else self.size, np.int64)
        self._count = 0

    @property
    def free(self) -> int | None:
        """How many are free; None: no limit."""
        return None if self.size is None else self.size - self._next + self._count

    def lacking(self, count: int) -> int:
        """How many are missing to hand out `count`."""
        return 0 if self.size is None else max(0, count - self.size + self._next - self._count)

    def take(self, count: int) -> Slots:
        """Hand out numbers; PoolExhausted, and no effect, when there are too few."""
        if missing := self.lacking(count):
            raise PoolExhausted(f"{count} {self._what} wanted, {missing} missing")
        fresh = count if self.size is None else min(count, self.size - self._next)
        numbers = np.arange(self._next, self._next + fresh, dtype=np.int64)
        self._next += fresh
        if fresh == count:
            return numbers
        end, self._count = self._count, self._count - count + fresh
        used = self._returned[self._count : end]
        return np.concatenate([numbers, used]) if fresh else used.copy()

    def take_one(self) -> int:
        """Hand out one number."""
        return int(self.take(1)[0])

    def give_back(self, numbers: Slots) -> None:
        """They are free again; without a limit numbers are never used twice."""
        if self.size is not None:
            self._returned[self._count : self._count + len(numbers)] = numbers
            self._count += len(numbers)

    def check_integrity(self, owned: Slots) -> None:
        """Every number handed out so far is free or in `owned`, exactly once."""
        assert len(np.unique(owned)) == len(owned), f"{self._what} owned twice"
        if self.size is not None:
            together = np.sort(np.concatenate([owned, self._returned[: self._count]]))
            assert np.array_equal(together, np.arange(self._next)), f"{self._what} neither free nor owned, or both"
