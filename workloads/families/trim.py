"""Trim: shorter prompts after a longer one, then the longer one again.

    long      [ whole prompt                 ]
    short     [ its first part   ]                 each length in turn
    long      [ whole prompt                 ]

Separates: token-exact from block caches; recurrent states and windows, which exist at few positions;
what a short prompt destroys (a slot is cut back to it).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from workloads.families.base import Parameters
from workloads.lengths import Length
from workloads.sequence import Send
from workloads.source import TokenSource


class Trim(Parameters):
    """Lengths in tokens; every one of `short` is at most `long`."""

    long: Length = 1038
    short: tuple[Length, ...] = (775, 519, 130)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if max(self.short, default=0) > self.long:
            raise ValueError(f"short = {list(self.short)} must not exceed long = {self.long}")
        return self


def trim(parameters: Trim, source: TokenSource) -> tuple[Send, ...]:
    """The long prompt, the short ones in the order given, the long one again."""
    whole = source.fresh(parameters.long)
    lengths = (parameters.long, *parameters.short, parameters.long)
    return tuple(Send(label=f"L={n}", parts=(whole[:n],), max_tokens=parameters.max_tokens) for n in lengths)
