"""Seeded token IDs for one workload, from what the model and the engine allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from vocabulary.errors import UsageError
from workloads.sequence import Ids, Run


class TokenSource:
    """Draws ID sequences; equal seeds and equal calls give equal IDs.

    Every `fresh` sequence starts with an ID that no other sequence of this source starts with, and
    `differing` starts with one that differs from a given ID: two prompts share exactly what the
    family says they share.
    """

    def __init__(
        self,
        seed: int,
        vocab_size: int,
        *,
        reserved: frozenset[int] = frozenset(),
        granule: int = 1,
        encode: Callable[[str], Ids] | None = None,
        read_text: Callable[[str], str] | None = None,
        locate: Callable[[str], Path] | None = None,
    ) -> None:
        self.seed = seed
        self.granule = granule
        """The engine's smallest reusable step, for families that probe each engine at its own edges."""
        self._rng = np.random.default_rng(seed)
        self._ids = np.asarray([i for i in range(vocab_size) if i not in reserved], np.int64)
        self._firsts = self._rng.permutation(self._ids)
        self._used_firsts, self._runs = 0, False
        self._encode, self._read_text, self._locate = encode, read_text, locate

    def drawing(self, runs: bool) -> Self:
        """Draw stretches of one shuffled list of all IDs (`Run`) from now on, or random IDs again."""
        self._runs = runs
        return self

    def any(self, count: int) -> Sequence[int]:
        """`count` IDs, whatever they are."""
        if self._runs:
            return Run(self._firsts, int(self._rng.integers(len(self._firsts))), count)
        return tuple(self._rng.choice(self._ids, count).tolist())

    def fresh(self, count: int) -> Sequence[int]:
        """`count` IDs whose first is new to this source; UsageError when the vocabulary is used up."""
        if count == 0:
            return ()
        if self._used_firsts == len(self._firsts):
            raise UsageError(
                f"the workload needs more than {len(self._firsts)} unrelated prompts, more than the model has IDs; "
                f"shorten its lists"
            )
        place, self._used_firsts = self._used_firsts, self._used_firsts + 1
        if self._runs:
            return Run(self._firsts, place, count)
        return (int(self._firsts[place]), *self.any(count - 1))

    def differing(self, count: int, *others: int) -> Sequence[int]:
        """`count` IDs whose first is none of `others`."""
        if len(set(others)) >= len(self._ids):
            raise UsageError(f"{len(self._ids)} IDs are too few for {len(others)} prompts that differ at one place")
        ids = self.any(count)
        while count and ids[0] in others:
            ids = self.any(count) if self._runs else (int(self._rng.choice(self._ids)), *ids[1:])
        return ids

    def two(self) -> tuple[int, int]:
        """Two different IDs."""
        first = self.any(1)[0]
        return first, self.differing(1, first)[0]

    def text(self, text: str) -> Ids:
        """A text's IDs by the model's own tokenizer, without special tokens."""
        if self._encode is None:
            raise UsageError("this workload reads text and the model folder has no tokenizer")
        return self._encode(text)

    def file(self, name: str) -> str:
        """A text file named by the experiment, relative to the experiment file."""
        if self._read_text is None:
            raise UsageError("this workload reads a text file and none can be read here")
        return self._read_text(name)

    @property
    def drawable(self) -> npt.NDArray[np.int64]:
        """Every ID that may be drawn, ascending."""
        return self._ids

    def path(self, name: str) -> Path:
        """Where a file named by the experiment lies."""
        if self._locate is None:
            raise UsageError("this workload reads a file and none can be found here")
        return self._locate(name)
