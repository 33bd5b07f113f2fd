"""Numbers without a limit, with reference counts; whatever nobody refers to any more is handed out again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class CountedBlocks:
    """Numbers of blocks, pages or states; freed ones are handed out again, last freed first."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """All blocks free."""
        self._made = 0
        self._free: list[int] = []
        self._references: Counter[int] = Counter()

    def take(self, count: int) -> list[int]:
        """New blocks with one reference each."""
        taken = [self._free.pop() if self._free else self._make() for _ in range(count)]
        self._references.update(taken)
        return taken

    def share(self, blocks: Iterable[int]) -> list[int]:
        """One more reference to each."""
        shared = list(blocks)
        self._references.update(shared)
        return shared

    def drop(self, blocks: Iterable[int]) -> None:
        """One reference less to each."""
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                del self._references[block]
                self._free.append(block)

    def references(self, block: int) -> int:
        """How many holders a block has."""
        return self._references[block]

    def check_integrity(self, held: Iterable[int]) -> None:
        """References are exactly the holds, and every other number is free once."""
        assert Counter(held) == self._references, "references are not the holds"
        together = sorted([*self._references, *self._free])
        assert together == list(range(self._made)), "blocks neither free nor held, or both"

    def _make(self) -> int:
        self._made += 1
        return self._made - 1
