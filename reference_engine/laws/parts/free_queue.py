"""The order in which free blocks are handed out: one queue, taken from the front.

Source of the order: vLLM 0.23.0 to 0.33.0, v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue). Block 0 is never
handed out (vLLM's null block). The queue is kept as runs of block numbers, so that whole prompts move at once; a
block that left the middle of the queue stays in its run with an outdated stamp and is skipped later.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from reference_engine.laws.base import PoolExhausted, Slots


class FreeQueue:
    """Blocks `1 .. num_blocks-1`; `num_blocks=None` never ends (prediction only)."""

    def __init__(self, num_blocks: int | None) -> None:
        self.num_blocks = num_blocks
        self.clear()

    def clear(self) -> None:
        """All blocks free, in the order of their numbers."""
        self._runs: deque[tuple[Slots, int]] = deque()
        self._stamps = np.zeros(1024 if self.num_blocks is None else self.num_blocks, np.int64)
        self._back, self._front = 1, -1
        self._entries = self.free = 0
        """`free`: blocks in the queue (of an endless one: those given back)."""
        self.seen = 1
        """Block numbers below this one exist."""
        if self.num_blocks is not None:
            self.seen = self.num_blocks
            self.append(np.arange(1, self.num_blocks))

    def __contains__(self, block: int) -> bool:
        return block < len(self._stamps) and bool(self._stamps[block])

    def append(self, blocks: Slots) -> None:
        """To the end, in this order."""
        if len(blocks):
            self._runs.append((blocks, self._back))
            self._put(blocks, self._back)
            self._back += 1

    def prepend(self, blocks: Slots) -> None:
        """To the front; the first of them is handed out next."""
        if len(blocks):
            self._runs.appendleft((blocks, self._front))
            self._put(blocks, self._front)
            self._front -= 1

    def remove(self, blocks: Slots) -> None:
        """Take blocks out of the middle of the queue; those that are not in it do not matter."""
        self.free -= int(np.count_nonzero(self._stamps[blocks]))
        self._stamps[blocks] = 0
        if self._entries > 4 * self.free + 4096:
            self._compact()

    def take(self, count: int) -> Slots:
        """The next `count` blocks; PoolExhausted, and no effect, when there are too few."""
        if self.num_blocks is not None and count > self.free:
            raise PoolExhausted(f"{count} blocks wanted, {self.free} free or evictable")
        taken: list[Slots] = []
        while count and self._runs:
            run, stamp = self._runs.popleft()
            part = max(2 * count, 1024)
            if len(run) > part:  # look at no more of a long run than is likely to do
                self._runs.appendleft((run[part:], stamp))
                run = run[:part]
            self._entries -= len(run)
            live = run[self._stamps[run] == stamp]
            if len(live) > count:
                rest = live[count:]
                self._runs.appendleft((rest, stamp))
                self._entries += len(rest)
                live = live[:count]
            self._stamps[live] = 0
            self.free -= len(live)
            count -= len(live)
            taken.append(live)
        if count:
            fresh = np.arange(self.seen, self.seen + count)
            self.seen += count
            if self.seen > len(self._stamps):
                self._stamps = np.concatenate([self._stamps, np.zeros(self.seen, np.int64)])
            taken.append(fresh)
        return np.concatenate(taken) if len(taken) != 1 else taken[0]

    def blocks(self) -> Slots:
        """All queued blocks, front first."""
        live = [run[self._stamps[run] == stamp] for run, stamp in self._runs]
        return np.concatenate(live) if live else np.empty(0, np.int64)

    def _put(self, blocks: Slots, stamp: int) -> None:
        self._stamps[blocks] = stamp
        self._entries += len(blocks)
        self.free += len(blocks)

    def _compact(self) -> None:
        """Drop outdated entries; runs keep their stamps."""
        runs = [(run[self._stamps[run] == stamp], stamp) for run, stamp in self._runs]
        self._runs = deque((run, stamp) for run, stamp in runs if len(run))
        self._entries = sum(len(run) for run, _ in self._runs)
