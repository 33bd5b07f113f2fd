"""Churn: a set of prompts, of half, all and twice the pool, sent round after round.

    round 1   [ prompt 1 ] [ prompt 2 ] ... [ prompt n ]       n prompts of equal length fill `of_pool` of the pool
    round 2   [ prompt 1 ] [ prompt 2 ] ... [ prompt n ]
    ...       then, on an empty cache, the next size

Separates: eviction. Half the pool stays and is hit; a set of twice the pool hits nothing under LRU, because each prompt
is dropped just before it comes again; in between lie tail-first freeing, pages pinned by the request itself, and what
a hybrid's groups take from each other.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from workloads.families.base import Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Send
from workloads.source import TokenSource

Share = Annotated[float, Field(gt=0, le=100)]


class Churn(Parameters):
    """`pool` in tokens; P is the pool the engine reports."""

    pool: Length = relative("P")
    of_pool: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.5, 1.0, 2.0)
    """Sizes of the working set as shares of the pool."""
    length: Length = relative("4g+60")
    rounds: Annotated[int, Field(ge=2, le=100)] = 2


def churn(parameters: Churn, source: TokenSource) -> tuple[Send, ...]:
    """Size by size, round by round."""
    sends: list[Send] = []
    for number, share in enumerate(parameters.of_pool):
        count = max(1, int(parameters.pool * share) // parameters.length)
        prompts = [source.fresh(parameters.length) for _ in range(count)]
        for turn in range(parameters.rounds):
            for index, prompt in enumerate(prompts):
                sends.append(
                    Send(
                        label=f"{share:g} P: {index + 1}",
                        parts=(prompt,),
                        max_tokens=parameters.max_tokens,
                        reset_before=number > 0 and turn == index == 0,
                    )
                )
    return tuple(sends)
