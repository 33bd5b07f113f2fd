"""What a workload is: sends in order, each prompt made of fixed IDs and, in growing chats, of earlier outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vocabulary.engine import Feature

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutputOf:
    """The generated IDs of an earlier send, by its index."""

    send: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One request of a workload."""

    label: str
    """Short name, equal for sends of the same prompt: "A", "L=257", "turn 2"."""
    parts: tuple[Ids | OutputOf, ...]
    max_tokens: int = 1
    namespace: str | None = None
    features: frozenset[Feature] = frozenset()
    reset_before: bool = False
    """Empty the cache before this send."""

    def prompt(self, outputs: Sequence[Ids]) -> Ids:
        """The prompt's token IDs, given the outputs of the sends before this one."""
        ids: list[int] = []
        for part in self.parts:
            ids.extend(outputs[part.send] if isinstance(part, OutputOf) else part)
        return tuple(ids)


def fingerprint(ids: Ids) -> str:
    """SHA-256 of the IDs as little-endian unsigned 32-bit integers."""
    return hashlib.sha256(np.asarray(ids, "<u4").tobytes()).hexdigest()
