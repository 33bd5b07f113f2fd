"""Blocks with references, and the order in which those without any are handed out: one queue, taken from the front.

Source of the order: vLLM 0.23.0 to 0.33.0, v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue). Block 0 is never
handed out (vLLM's null block). The queue is kept as runs of block numbers, so that whole prompts move at once. One mark
per block says whether it is held or in which run it waits; a block that left the middle of the queue stays in its run
and is skipped later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from reference_engine.laws.base import PoolExhausted, Slots
from reference_engine.laws.parts.chained import longer

JOINED = 4096
"""Blocks that are looked through at once for those that are still free, and outdated ones that are not looked for."""


class FreeQueue:
    """Blocks `1 .. num_blocks-1`; `num_blocks=None` never ends (prediction only)."""

    def __init__(self, num_blocks: int | None) -> None:
        self.num_blocks = num_blocks
        self.clear()

    def clear(self) -> None:
        """All blocks free, in the order of their numbers."""
        self._front: list[int] = []
        self._runs: deque[tuple[Slots, int]] = deque()
        self.held = 0
        """References in all."""
        self._number = self._joined = self._entries = self.free = 0
        """`free`: blocks in the queue (of an endless one: those given back)."""
        self.seen = 1 if self.num_blocks is None else self.num_blocks
        """Block numbers below this one exist."""
        self._marks = np.zeros(self.seen, np.int64)
        """References of a held block; of one in a run the run's number, which is negative; else 0."""
        self.append(np.arange(1, self.seen))

    # -- references ------------------------------------------------------------------------------------------------

    def share(self, blocks: Slots) -> None:
        """One more reference each; a block that was free leaves the queue."""
        if self.held == 0 and self.num_blocks is not None:  # so all of them are free: no need to look
            free = len(blocks)
            self._marks[blocks] = 1
        else:
            marks = self._marks.take(blocks)
            free = int(np.count_nonzero(marks < 0))
            self._marks[blocks] = np.maximum(marks, 0) + 1
        self.held += len(blocks)
        self.free -= free
        if self._entries > 4 * self.free + JOINED:
            self._compact()

    def drop(self, blocks: Slots) -> Slots:
        """One reference less each; gives those left without any, which the caller has to queue or to shelve."""
        self.held -= len(blocks)
        if self.held == 0:  # so these were all the references there are
            return blocks
        marks = self._marks.take(blocks) - 1
        self._marks[blocks] = marks
        freed: Slots = blocks[marks == 0]
        return freed

    def queued(self, blocks: Slots) -> int:
        """How many of the blocks are free."""
        return int(np.count_nonzero(self._marks.take(blocks) < 0))

    def references(self) -> Slots:
        """Of every block."""
        references: Slots = np.maximum(self._marks, 0)
        return references

    # -- the queue -------------------------------------------------------------------------------------------------

    def append(self, blocks: Slots) -> None:
        """To the end, in this order."""
        if len(blocks):
            self.free += len(blocks)
            self._entries += len(blocks)
            self._runs.append(self._run(blocks))

    def prepend(self, blocks: Slots) -> None:
        """To the front; the first of them is handed out next. Nobody can share them before."""
        if len(blocks):
            self.free += len(blocks)
            self._marks[blocks] = 0
            self._front[:0] = blocks.tolist()

    def shelve(self, blocks: Slots) -> None:
        """Neither held nor to be handed out."""
        self._marks[blocks] = 0

    def take(self, count: int) -> Slots:
        """The next `count` blocks, with one reference each; PoolExhausted, and no effect, when there are too few."""
        if self.num_blocks is not None and count > self.free:
            raise PoolExhausted(f"{count} blocks wanted, {self.free} free or evictable")
        taken = [np.asarray(self._front[:count], np.int64)]
        del self._front[:count]
        missing = count - len(taken[0])
        while missing and self._runs:
            run, number = self._first_run()
            part = run[:missing]
            if len(run) > missing:
                self._runs.appendleft((run[missing:], number))
            live = part[self._marks.take(part) == number]
            self._entries -= len(part)
            missing -= len(live)
            taken.append(live)
        self.free -= count - missing
        if missing:
            taken.append(np.arange(self.seen, self.seen + missing))
            self.seen += missing
            if self.seen > len(self._marks):
                self._marks = longer(self._marks, self.seen)
        blocks = np.concatenate(taken)
        self._marks[blocks] = 1
        self.held += count
        return blocks

    def blocks(self) -> Slots:
        """All queued blocks, front first."""
        return np.concatenate([np.asarray(self._front, np.int64), *(self._live([run]) for run in self._runs)])

    def check_entries(self) -> None:
        """AssertionError where what the runs hold is miscounted."""
        assert self._entries == sum(len(blocks) for blocks, _ in self._runs), "entries of the queue miscounted"

    def _run(self, blocks: Slots) -> tuple[Slots, int]:
        self._number -= 1
        self._marks[blocks] = self._number
        return blocks, self._number

    def _live(self, runs: Sequence[tuple[Slots, int]]) -> Slots:
        """The blocks of runs that have not left them, in order."""
        blocks = np.concatenate([blocks for blocks, _ in runs])
        numbers = np.repeat([number for _, number in runs], [len(blocks) for blocks, _ in runs])
        live: Slots = blocks[self._marks.take(blocks) == numbers]
        return live

    def _first_run(self) -> tuple[Slots, int]:
        """Take the first run out of the queue; several are made one, without what has left them, once in a while."""
        runs = [self._runs.popleft()]
        if runs[0][1] == self._joined:
            return runs[0]
        size = len(runs[0][0])
        while self._runs and size < JOINED:
            runs.append(self._runs.popleft())
            size += len(runs[-1][0])
        live = self._live(runs)
        self._entries += len(live) - size
        joined = self._run(live)
        self._joined = joined[1]
        return joined

    def _compact(self) -> None:
        """Drop outdated entries."""
        live = self._live(self._runs)
        self._runs = deque([self._run(live)])
        self._entries = len(live)
