"""Sequences of tokens whose IDs nobody knows: stretches of numbers, each given to one token once.

A number is always reached through the same numbers before it, so the one at a block's end is that block's chain key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workloads.traces.chain import Keys

Stretch = tuple[int, int]
"""First number and count of consecutive numbers."""


def length(stretches: Sequence[Stretch]) -> int:
    """Tokens."""
    return sum(count for _, count in stretches)


def cut(stretches: Sequence[Stretch], tokens: int) -> tuple[Stretch, ...]:
    """The first so many tokens, or all where there are fewer."""
    kept: list[Stretch] = []
    for start, count in stretches:
        if tokens <= 0:
            break
        kept.append((start, min(count, tokens)))
        tokens -= count
    return tuple(kept)


def block_ends(stretches: Sequence[Stretch], block_len: int, *, partial: bool = True) -> Keys:
    """Numbers of the last token of every block; of the last, partial one too, unless told otherwise."""
    total = length(stretches)
    ends = np.arange(block_len, total + (block_len if partial else 1), block_len)
    ends = np.minimum(ends, total) - 1
    begins = np.cumsum([0, *(count for _, count in stretches)])
    which = np.searchsorted(begins, ends, side="right") - 1
    starts = np.array([start for start, _ in stretches], np.int64)
    keys: Keys = starts[which] + ends - begins[which]
    return keys


class Numbers:
    """Gives out numbers, each once."""

    def __init__(self) -> None:
        self.given = 0

    def take(self, count: int) -> tuple[Stretch, ...]:
        """One new stretch; none for a count of 0."""
        start, self.given = self.given, self.given + count
        return ((start, count),) if count else ()
