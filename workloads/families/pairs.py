"""Pairs: one prompt timed cold and timed warm, interleaved; the protocol for latency.

    cold half   reset  [ shared S ][ a ] prime    reset  [ shared S ][ b ] timed, hits nothing
    warm half   reset  [ shared S ][ a ] prime           [ shared S ][ b ] timed, hits the shared part

Both halves do the same work before the timed request, on the same prompts (`prime_cold = false` leaves the cold
half's out, for engines as slow as a CPU). Every second pair begins with its warm half, and every second length with a
pair that does, so that drift takes from both alike. The first pairs of each length are warm-ups, labelled so and not
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from workloads.families.base import Count, Parameters
from workloads.lengths import Length
from workloads.sequence import Send
from workloads.source import TokenSource

PRIME, COLD, WARM = "prime", "cold", "warm"
"""Last word of a send's label."""
WARM_UP = "warm-up"
"""Word in the label of sends whose times do not count."""


class Pairs(Parameters):
    """`pairs` counted pairs after `warm_up` others, for each length of `shared`."""

    shared: Annotated[tuple[Length, ...], Field(min_length=1)] = (1024,)
    suffix: Length = 14
    pairs: Count = 8
    warm_up: Annotated[int, Field(ge=0, le=100)] = 3
    prime_cold: bool = True
    """Whether the cold half computes its prime as well: equal work before both timed requests, half as much again."""


def pairs(parameters: Pairs, source: TokenSource) -> tuple[Send, ...]:
    """Length by length, pair by pair."""
    sends: list[Send] = []
    for place, shared_len in enumerate(parameters.shared):
        for number in range(-parameters.warm_up, parameters.pairs):
            name = f"{shared_len} {WARM_UP} {-number}" if number < 0 else f"{shared_len} pair {number + 1}"
            shared, first = source.fresh(shared_len), source.fresh(parameters.suffix)
            second = source.differing(parameters.suffix, first[0])
            halves = [_half(name, kind, shared, first, second, parameters.max_tokens) for kind in (COLD, WARM)]
            if not parameters.prime_cold:
                halves[0] = [replace(halves[0][1], reset_before=True)]
            for half in reversed(halves) if (number + place) % 2 else halves:
                sends += half
    return tuple(sends)


def _half(
    name: str, kind: str, shared: Sequence[int], first: Sequence[int], second: Sequence[int], max_tokens: int
) -> list[Send]:
    return [
        Send(label=f"{name} {PRIME}", parts=(shared, first), max_tokens=max_tokens, reset_before=True),
        Send(label=f"{name} {kind}", parts=(shared, second), max_tokens=max_tokens, reset_before=kind == COLD),
    ]
