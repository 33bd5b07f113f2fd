"""Seeded token IDs for one workload, from what the model and the engine allow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vocabulary.errors import UsageError
from workloads.sequence import Ids


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
    ) -> None:
        self.granule = granule
        """The engine's smallest reusable step, for families that probe each engine at its own edges."""
        self._rng = np.random.default_rng(seed)
        self._ids = np.asarray([i for i in range(vocab_size) if i not in reserved], np.int64)
        self._firsts = self._rng.permutation(self._ids)
        self._used_firsts = 0
        self._encode, self._read_text = encode, read_text

    def any(self, count: int) -> Ids:
        """`count` random IDs."""
        return tuple(int(i) for i in self._rng.choice(self._ids, count))

    def fresh(self, count: int) -> Ids:
        """`count` random IDs whose first is new to this source; UsageError when the vocabulary is used up."""
        if count == 0:
            return ()
        if self._used_firsts == len(self._firsts):
            raise UsageError(
                f"the workload needs more than {len(self._firsts)} unrelated prompts, more than the model has IDs; "
                f"shorten its lists"
            )
        first = int(self._firsts[self._used_firsts])
        self._used_firsts += 1
        return (first, *self.any(count - 1))

    def differing(self, count: int, *others: int) -> Ids:
        """`count` random IDs whose first is none of `others`."""
        ids = self.any(count)
        while count and ids[0] in others:
            ids = (int(self._rng.choice(self._ids)), *ids[1:])
        return ids

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
