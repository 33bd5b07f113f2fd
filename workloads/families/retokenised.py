"""Retokenised: a chat that sends its answers back as text, so that IDs change where pieces of text meet.

    turn 1   [ first ]                                        -> answer 1
    turn 2   [ first ][ x answer 1 y ][ question ]            -> answer 2
    turn 3   [ first ][ x answer 1 y ][ question ][ x answer 2 y ][ question ]

    x, y: the answer's first and last ID, replaced by others (`seams` says which)

Separates: engines that keep generated tokens from those that keep prompts. With x changed the answer is lost and the
hit ends with the old prompt, where a state may or may not be; with y alone almost all of it is hit.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from workloads.families.grow import Grow
from workloads.sequence import OutputOf, Part, Send, Unlike
from workloads.source import TokenSource


class Retokenised(Grow):
    """As `grow`; `seams` are the ends of an answer whose ID changes."""

    seams: Annotated[tuple[Literal["first", "last"], ...], Field(min_length=1)] = ("first", "last")

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.max_tokens < 3:
            raise ValueError(f"max_tokens = {self.max_tokens}: an answer with two ends needs at least 3 tokens")
        return self


def retokenised(parameters: Retokenised, source: TokenSource) -> tuple[Send, ...]:
    """One send per turn; later turns repeat the changed answers."""
    parts: tuple[Part, ...] = (source.fresh(parameters.first),)
    last = parameters.max_tokens - 1
    head, tail = "first" in parameters.seams, "last" in parameters.seams
    sends = []
    for turn in range(parameters.turns):
        sends.append(Send(label=f"turn {turn + 1}", parts=parts, max_tokens=parameters.max_tokens))
        middle = OutputOf(turn, int(head), last if tail else None)
        before = (Unlike(turn, 0, source.two()),) if head else ()
        after = (Unlike(turn, last, source.two()),) if tail else ()
        parts = (*parts, *before, middle, *after, source.any(parameters.question))
    return tuple(sends)
