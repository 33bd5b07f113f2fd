"""Prompts to explain: from lengths and a relation, from a case, or from a recorded run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from harness.cases.format import CaseRequest
from harness.cases.reading import Placed, find_cases
from harness.cases.tokens import Tokens
from vocabulary.errors import UsageError

FRESH = 1 << 20
"""First ID of tails that nothing else shares; prefixes count from 0."""


class Relation(StrEnum):
    """How prompts of given lengths relate."""

    PREFIX = "prefix"
    """All are prefixes of one random sequence."""
    REPEAT = "repeat"
    """As prefix: equal lengths are equal prompts."""
    FRESH = "fresh"
    """Nothing is shared."""


def from_lengths(lengths: Sequence[int], relation: str, times: int) -> tuple[CaseRequest, ...]:
    """Requests of these lengths; UsageError for an unknown relation.

    `prefix`, `repeat`, `fresh`, or `siblings:S`: the first S tokens are shared and each tail is its own.
    """
    word, _, number = relation.partition(":")
    shared = 0
    if word == "siblings":
        if not number.isdigit() or int(number) < 1:
            raise UsageError(f"relation {relation!r}: write siblings:S, S shared tokens")
        shared = int(number)
    elif relation not in set(Relation):
        raise UsageError(f"relation {relation!r}: there are {', '.join(Relation)} and siblings:S")
    starts = itertools.count(FRESH, 1 << 22)
    requests = []
    for length in [*lengths] * times:
        common = min(length, shared) if shared else (0 if relation == Relation.FRESH else length)
        prompt = Tokens.joined([(0, common)])
        if length > common:
            start = next(starts)
            prompt += Tokens.joined([(start, start + length - common)])
        requests.append(CaseRequest(prompt=prompt))
    return tuple(requests)


def parse_lengths(text: str) -> tuple[int, ...]:
    """Such as "3714,1857"; UsageError names what is no length."""
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and 0 < int(part) <= 1 << 21):
            raise UsageError(f"prompt length {part!r}: positive whole numbers such as 3714,1857 are needed")
    return tuple(int(part) for part in parts)


def find_case(text: str) -> list[Placed]:
    """Cases of FILE or FILE:ID, a shipped set's name in place of a file too."""
    if Path(text).exists() or ":" not in text:
        return find_cases([text])
    name, _, case_id = text.rpartition(":")
    found = find_cases([name])
    chosen = [placed for placed in found if placed.case.id == case_id]
    if not chosen:
        ids = ", ".join(placed.case.id for placed in found[:20])
        raise UsageError(f"{name}: no case {case_id!r}; there are: {ids}")
    return chosen
