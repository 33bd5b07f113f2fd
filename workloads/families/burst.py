"""Burst: equal prompts at the same moment, then one after the other, then the same without the burst.

    together   [ prompt ] [ prompt ] [ prompt ] ...     n at once, on an empty cache
    after      [ prompt ]                               one by one
    reset
    alone      [ prompt ]                               one by one from the start

Separates: engines that publish a block when it is allocated (the second request of a burst hits the first), when a step
or a prompt is done, or at the end only. Laws state serial order: from the burst to the next reset the record has
`law: null`, nothing is predicted, and the observation stands alone beside the serial one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from workloads.families.base import Count, Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Send
from workloads.source import TokenSource


class Burst(Parameters):
    """`count` requests at once, then `serial` after each other."""

    length: Length = relative("4g+1")
    own: Length | None = None
    """Tokens at the end of each prompt that are its own; None: all prompts are equal."""
    count: Annotated[int, Field(ge=2, le=64)] = 4
    serial: Count = 2


def burst(parameters: Burst, source: TokenSource) -> tuple[Send, ...]:
    """Burst, serial sends of the same prompts, reset, serial sends."""
    shared, firsts = source.fresh(parameters.length), list[int]()
    prompts = []
    for _ in range(parameters.count):
        own = source.differing(parameters.own or 0, *firsts)
        firsts += own[:1]
        prompts.append((shared, own))

    def send(part: str, number: int, *, at_once: bool = False, reset: bool = False) -> Send:
        return Send(
            label=f"{part} {number + 1}",
            parts=prompts[number],
            max_tokens=parameters.max_tokens,
            with_previous=at_once,
            reset_before=reset,
        )

    together = [send("together", n, at_once=n > 0) for n in range(parameters.count)]
    numbers = [n % parameters.count for n in range(parameters.serial)]
    after = [send("after", n) for n in numbers]
    alone = [send("alone", n, reset=i == 0) for i, n in enumerate(numbers)]
    return (*together, *after, *alone)
