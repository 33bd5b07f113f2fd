"""A case's token IDs in a smaller vocabulary, with every common prefix as it was.

An ID becomes a keyed hash of itself. Equal IDs stay equal, so common prefixes can only grow, and do so when the
first two IDs that differ meet in one image; keys are tried until no pair of sequences does that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from harness.cases.format import UNSTATED_OUTPUT, Case
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover

Ids64 = npt.NDArray[np.int64]
MAX_SEQUENCES = 600
MAX_KEYS = 64


class DoesNotFit(LawDoesNotCover):
    """The IDs cannot be written in the vocabulary without lengthening a common prefix."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Images of a case's prompts and outputs, by request; None: they are sent as they are."""

    prompts: tuple[tuple[int, ...], ...] | None
    outputs: tuple[tuple[int, ...], ...] | None

    def request(self, case: Case, index: int) -> tuple[TokenRequest, tuple[int, ...]]:
        """Request and output to send."""
        request = case.token_request(index)
        if self.prompts is None or self.outputs is None:
            return request, case.requests[index].output_ids
        return replace(request, ids=self.prompts[index]), self.outputs[index]


def fit(case: Case, vocab_size: int, reserved: frozenset[int] = frozenset()) -> Fitted:
    """The case in a vocabulary of `vocab_size` IDs, none of `reserved`; as it is where it fits.

    Raises LawDoesNotCover where no key keeps the common prefixes.
    """
    highest = max(stop - 1 for request in case.requests for _, stop in request.prompt.ranges)
    unstated = any(request.output is None for request in case.requests)
    stated = [stop - 1 for request in case.requests if request.output for _, stop in request.output.ranges]
    if not reserved and max([highest, *stated, UNSTATED_OUTPUT if unstated else 0]) < vocab_size:
        return Fitted(None, None)
    prompts = [np.asarray(request.prompt.ids, np.int64) for request in case.requests]
    outputs = [np.asarray(request.output_ids, np.int64) for request in case.requests]
    sequences = [np.concatenate(pair) for pair in zip(prompts, outputs, strict=True)]
    pairs = divergences(case.id, sequences)
    allowed = allowed_ids(vocab_size, reserved)
    for key in range(MAX_KEYS):
        if not pairs.size or (hashed(pairs[:, 0], key, allowed) != hashed(pairs[:, 1], key, allowed)).all():
            return Fitted(_images(prompts, key, allowed), _images(outputs, key, allowed))
    raise DoesNotFit(
        f"{case.id}: {MAX_KEYS} ways to write its IDs in a vocabulary of {vocab_size} all lengthen a common prefix; "
        f"use fewer diverging prompts or a model with more IDs"
    )


def divergences(case_id: str, sequences: list[Ids64]) -> Ids64:
    """The pairs of IDs at which two sequences part, as an array of shape [pairs, 2]."""
    distinct = {sequence.tobytes(): sequence for sequence in sequences}
    if len(distinct) > MAX_SEQUENCES:
        raise DoesNotFit(
            f"{case_id}: {len(distinct)} different sequences, more than the {MAX_SEQUENCES} whose common prefixes are "
            f"compared in pairs; split the case"
        )
    found: set[tuple[int, int]] = set()
    rest = list(distinct.values())
    while rest:
        first = rest.pop()
        for other in rest:
            n = min(len(first), len(other))
            differs = first[:n] != other[:n]
            at = int(differs.argmax()) if n else 0
            if n and differs[at]:
                found.add((int(first[at]), int(other[at])))
    return np.asarray(sorted(found), np.int64).reshape(-1, 2)


def hashed(ids: Ids64, key: int, allowed: Ids64) -> Ids64:
    """Image of every ID under one key (the finaliser of SplitMix64 on ID and key)."""
    with np.errstate(over="ignore"):
        x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(key + 1)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return allowed[(x % np.uint64(len(allowed))).astype(np.int64)]


@lru_cache(maxsize=8)
def allowed_ids(vocab_size: int, reserved: frozenset[int]) -> Ids64:
    """IDs of the vocabulary that may be sent."""
    return np.asarray([token_id for token_id in range(vocab_size) if token_id not in reserved], np.int64)


def _images(parts: list[Ids64], key: int, allowed: Ids64) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(hashed(part, key, allowed).tolist()) for part in parts)
