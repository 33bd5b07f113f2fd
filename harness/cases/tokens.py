"""Token IDs as case files write them: a list of IDs, or half-open ranges `[[start, stop], ...]` of consecutive IDs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_ID = 2**31 - 1
MAX_TOKENS = 1 << 21
"""Longest prompt or output of a case, in tokens."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A token sequence, kept as ranges of consecutive IDs, as long as possible and none empty."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ids: Iterable[int]) -> Tokens:
        """From single IDs."""
        return cls.joined((token_id, token_id + 1) for token_id in ids)

    @classmethod
    def joined(cls, ranges: Iterable[tuple[int, int]]) -> Tokens:
        """From ranges; empty ones vanish and neighbours that continue one another are joined."""
        runs: list[tuple[int, int]] = []
        for start, stop in ranges:
            if start == stop:
                continue
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], stop)
            else:
                runs.append((start, stop))
        return cls(tuple(runs))

    @classmethod
    def parse(cls, value: Any) -> Tokens:
        """From JSON; ValueError says what is wrong with it."""
        if isinstance(value, Tokens):
            return value
        if not isinstance(value, list):
            raise ValueError("a list of token IDs, or of [start, stop] ranges, is needed")
        if all(type(item) is int for item in value):
            ranges = [(item, item + 1) for item in value]
        elif all(isinstance(item, list) and len(item) == 2 and all(type(end) is int for end in item) for item in value):
            ranges = [(start, stop) for start, stop in value]
        else:
            raise ValueError("token IDs and [start, stop] ranges cannot be mixed; write [7, 8] as [[7, 9]]")
        for start, stop in ranges:
            if not 0 <= start < stop <= MAX_ID:
                raise ValueError(f"[{start}, {stop}]: IDs run from 0 to {MAX_ID - 1}, and a range is not empty")
        tokens = cls.joined(ranges)
        if len(tokens) > MAX_TOKENS:
            raise ValueError(f"{len(tokens)} tokens, more than {MAX_TOKENS}")
        return tokens

    def to_json(self) -> list[int] | list[list[int]]:
        """The shorter of the two spellings."""
        if len(self) <= 2 * len(self.ranges):
            return list(self.ids)
        return [[start, stop] for start, stop in self.ranges]

    @property
    def ids(self) -> tuple[int, ...]:
        """Every ID in order."""
        return tuple(itertools.chain.from_iterable(range(start, stop) for start, stop in self.ranges))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def cut(self, length: int) -> Tokens:
        """The first `length` tokens."""
        return self.part(0, length)

    def part(self, start: int, stop: int) -> Tokens:
        """Positions `[start, stop)`."""
        found, position = [], 0
        for low, high in self.ranges:
            a, b = max(start - position, 0), min(stop - position, high - low)
            if a < b:
                found.append((low + a, low + b))
            position += high - low
        return Tokens.joined(found)

    def without(self, low: int, high: int) -> Tokens:
        """With every ID of `[low, high)` taken out."""
        kept = []
        for start, stop in self.ranges:
            kept += [(start, max(start, min(stop, low))), (min(stop, max(start, high)), stop)]
        return Tokens.joined(kept)

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens.joined((*self.ranges, *other.ranges))


def concatenated(parts: Sequence[Tokens]) -> Tokens:
    """One sequence after the other."""
    return Tokens.joined(itertools.chain.from_iterable(part.ranges for part in parts))
