"""What a llama.cpp context keeps of one sequence, and how far back it can go: three kinds of memory.

Source: llama.cpp at the commit inside llama-cpp-python 0.3.36 (src/llama-kv-cache.cpp `find_slot`, `apply_ubatch`,
`seq_rm`, `state_write`; src/llama-kv-cache-iswa.cpp; src/llama-memory-hybrid.cpp), executed with b11549.

    memory        first position held                        can be cut back to
    full          0                                          any length
    window        that of the oldest cell not yet reused      lengths whose window it still holds
    recurrent     the last one: one state                     nothing else

The window layers have `window + n_ubatch` cells, padded to 256. A cell is free for a new token when it is empty or so
old that the *next* position no longer sees it. Cells are searched from a moving head, so what is left of old positions
depends on the order in which cells were filled: it is followed cell by cell here. Positions stay contiguous: with a
cell that is overwritten go all older ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference_engine.laws.llama_cpp.places import Copy

Positions = npt.NDArray[np.int64]
EMPTY = -1
"""Inside the arrays of `WindowCells` only: a cell that holds nothing."""
CELL_PADDING = 256


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of one sequence's state outside the context; of window layers only the cells the last position sees."""

    first: int
    """First position the memory held when the copy was made."""
    last: int
    """Last one."""
    cells: Positions | None = None
    """Positions of the window cells, in the order of the cells; None: no window layers."""
    copy: Copy | None = None
    """Where it lies; None: no engine follows."""

    @property
    def window_first(self) -> int | None:
        """First copied position of window layers."""
        return None if self.cells is None else int(self.cells.min())


class Memory(ABC):
    """The cells of one sequence."""

    @property
    @abstractmethod
    def first(self) -> int | None:
        """First position that every layer holds; None: empty."""

    @property
    @abstractmethod
    def last(self) -> int | None:
        """Last position held; None: empty."""

    @abstractmethod
    def cut(self, length: int) -> None:
        """Drop positions `length` and up."""

    @abstractmethod
    def decode(self, start: int, end: int) -> None:
        """One call of llama_decode over positions `[start, end)`."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Copy the sequence, which must not be empty."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Hold what the copy holds and nothing else."""


class FullMemory(Memory):
    """Every position is kept."""

    def __init__(self) -> None:
        self._length = 0

    @property
    def first(self) -> int | None:
        """0 unless empty."""
        return 0 if self._length else None

    @property
    def last(self) -> int | None:
        """The newest position."""
        return self._length - 1 if self._length else None

    def cut(self, length: int) -> None:
        """Any length will do."""
        self._length = min(self._length, length)

    def decode(self, start: int, end: int) -> None:
        """The sequence grows."""
        assert start == self._length, f"decode at {start} behind {self._length} positions"
        self._length = end

    def snapshot(self) -> Snapshot:
        """Nothing but the length matters."""
        return Snapshot(0, self._length - 1)

    def restore(self, snapshot: Snapshot) -> None:
        """The copied length."""
        self._length = snapshot.last + 1


class RecurrentMemory(Memory):
    """One state, after the last position; attention layers beside it do not change what can be resumed."""

    def __init__(self) -> None:
        self._position: int | None = None

    @property
    def first(self) -> int | None:
        """The state's position."""
        return self._position

    @property
    def last(self) -> int | None:
        """The state's position."""
        return self._position

    def cut(self, length: int) -> None:
        """Only to nothing, or to where the state already is; the server restores a checkpoint before it cuts."""
        if length == 0:
            self._position = None
        assert self._position is None or self._position < length, f"state at {self._position} cut to {length}"

    def decode(self, start: int, end: int) -> None:
        """The state moves on."""
        self._position = end - 1

    def snapshot(self) -> Snapshot:
        """The state."""
        assert self._position is not None
        return Snapshot(self._position, self._position)

    def restore(self, snapshot: Snapshot) -> None:
        """The copied state."""
        self._position = snapshot.last


def window_cells(window: int, n_ubatch: int, *, sequences: int = 1, most: int | None = None) -> int:
    """Cells of the window layers of one stream; `sequences` share it, `most` are the cells of the full layers."""
    wanted = window * sequences + n_ubatch
    wanted = wanted if most is None else min(most, wanted)
    return -(-wanted // CELL_PADDING) * CELL_PADDING


class WindowCells:
    """The cells of the window layers in one stream: a ring searched from a moving head."""

    def __init__(self, count: int, window: int, n_ubatch: int) -> None:
        self.window, self.n_ubatch = window, n_ubatch
        self._position: Positions = np.full(count, EMPTY, np.int64)
        self._owner: Positions = np.full(count, EMPTY, np.int64)
        self._head = 0

    def held(self, sequence: int) -> Positions:
        """Positions of one sequence in the order of the cells."""
        held: Positions = self._position[self._owner == sequence]
        return held

    def remove(self, sequence: int, start: int, end: int | None = None) -> None:
        """Empty the cells of positions `[start, end)` of one sequence; the head goes back to the first of them."""
        gone = (self._owner == sequence) & (self._position >= start)
        if end is not None:
            gone &= self._position < end
        freed = np.flatnonzero(gone)
        if freed.size:
            self._position[freed] = self._owner[freed] = EMPTY
            self._head = min(self._head, int(freed[0]))

    def place(self, sequence: int, positions: Positions) -> None:
        """Put one forward's positions into free cells, oldest head first."""
        cells = self._find(len(positions))
        overwritten = [
            (int(owner), int(self._position[cells][self._owner[cells] == owner].max()))
            for owner in np.unique(self._owner[cells])
            if owner != EMPTY
        ]
        self._position[cells], self._owner[cells] = positions, sequence
        for owner, newest in overwritten:
            self.remove(owner, 0, newest + 1)
        self._head = int(cells[-1]) + 1

    def check(self) -> None:
        """AssertionError unless the positions of every sequence are contiguous and each is held once."""
        for owner in np.unique(self._owner):
            if owner != EMPTY:
                positions = np.sort(self.held(int(owner)))
                assert np.array_equal(positions, np.arange(positions[0], positions[0] + len(positions))), (
                    f"sequence {owner} holds window positions {positions.tolist()}"
                )

    def _find(self, count: int) -> Positions:
        used = int(np.count_nonzero(self._owner != EMPTY))
        head = 0 if self._head > used + 2 * count else self._head
        free = self._owner == EMPTY
        for owner in np.unique(self._owner):
            if owner != EMPTY:
                mine = self._owner == owner
                following = int(self._position[mine].max()) + 1
                free |= mine & (following - self._position >= self.window)
        order = np.concatenate([np.arange(head, len(free)), np.arange(head)])
        cells: Positions = order[free[order]][:count]
        assert len(cells) == count, f"{len(cells)} window cells free, {count} needed"
        return cells


class WindowMemory(Memory):
    """One sequence in window layers; the full layers beside them hold a superset."""

    def __init__(self, cells: WindowCells, sequence: int) -> None:
        self._cells, self._sequence = cells, sequence

    @property
    def first(self) -> int | None:
        """Oldest position not yet overwritten."""
        held = self._cells.held(self._sequence)
        return int(held.min()) if held.size else None

    @property
    def last(self) -> int | None:
        """The newest position."""
        held = self._cells.held(self._sequence)
        return int(held.max()) if held.size else None

    def cut(self, length: int) -> None:
        """Never refused, even where the window below is gone."""
        self._cells.remove(self._sequence, length)

    def decode(self, start: int, end: int) -> None:
        """In forwards of `n_ubatch`."""
        step = self._cells.n_ubatch
        for begin in range(start, end, step):
            self._cells.place(self._sequence, np.arange(begin, min(begin + step, end), dtype=np.int64))

    def snapshot(self) -> Snapshot:
        """The cells within the window of the last position."""
        held = self._cells.held(self._sequence)
        last = int(held.max())
        return Snapshot(int(held.min()), last, held[last - held < self._cells.window])

    def restore(self, snapshot: Snapshot) -> None:
        """Into free cells, in the order of the copy."""
        assert snapshot.cells is not None
        self._cells.remove(self._sequence, 0)
        self._cells.place(self._sequence, snapshot.cells)
