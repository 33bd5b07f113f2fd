"""Fork: one prompt is answered, and later prompts leave that answer in its middle.

    parent   [ prompt ]                          -> answer
    fork k   [ prompt ][ answer, first k ][ own ]          each k in turn, each twice
    parent   [ prompt ]

Separates: generated tokens that can be hit at every position (pages of one token, slots), at block edges only, or not
at all behind the prompt (a recurrent state follows generation and leaves nothing behind it).
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from workloads.families.base import Parameters
from workloads.lengths import Length, relative
from workloads.sequence import OutputOf, Send, Unlike
from workloads.source import TokenSource


class Fork(Parameters):
    """`kept` are the lengths of answer that forks keep; `max_tokens` is the length of the whole answer."""

    max_tokens: Length = relative("g+8")
    prompt: Length = relative("2g+5")
    kept: Annotated[tuple[Length, ...], Field(min_length=1)] = relative((1, "g", "g+3"))
    own: Length = 9

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if max(self.kept) >= self.max_tokens:
            raise ValueError(f"kept = {max(self.kept)} must be below max_tokens = {self.max_tokens}")
        return self


def fork(parameters: Fork, source: TokenSource) -> tuple[Send, ...]:
    """The parent, every fork twice, the parent again."""
    prompt = source.fresh(parameters.prompt)
    parent = Send(label="parent", parts=(prompt,), max_tokens=parameters.max_tokens)
    sends = [parent]
    for length in sorted(set(parameters.kept)):
        parts = (prompt, OutputOf(0, 0, length), Unlike(0, length, source.two()), source.any(parameters.own))
        sends += [Send(label=f"fork {length}", parts=parts)] * 2
    return (*sends, parent)
