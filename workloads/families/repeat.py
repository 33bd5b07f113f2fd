"""Repeat: one prompt several times, at lengths around block edges.

    send 1   [ unique L tokens ]      cold
    send 2   [ the same        ]      first repeat
    send 3   [ the same        ]      second repeat (differs from the first in hybrids)

Separates: rounding to the block, and the cap that keeps the last token from being reused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from workloads.families.base import Count, Parameters
from workloads.lengths import Length
from workloads.sequence import Send
from workloads.source import TokenSource


class Repeat(Parameters):
    """Lengths are given, or made around multiples of blocks: kB-1, kB, kB+1, kB+2."""

    lengths: tuple[Length, ...] = ()
    dense: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Every length from 1 up to this one: the whole staircase."""
    blocks: tuple[Length | Literal["engine"], ...] = ()
    """Block sizes B whose edges are probed; "engine" is the granule the engine reports."""
    multiples: tuple[Count, ...] = (1, 2)
    """The k of kB."""
    sends: Annotated[int, Field(ge=2, le=20)] = 3


def repeat(parameters: Repeat, source: TokenSource) -> tuple[Send, ...]:
    """Sends grouped by length, shortest first."""
    blocks = {source.granule if block == "engine" else block for block in parameters.blocks}
    around = {k * b + d for b in blocks for k in parameters.multiples for d in (-1, 0, 1, 2)}
    sends = []
    for length in sorted(around | set(parameters.lengths) | set(range(1, parameters.dense + 1))):
        if length >= 1:
            prompt = source.fresh(length)
            send = Send(label=f"L={length}", parts=(prompt,), max_tokens=parameters.max_tokens)
            sends += [send] * parameters.sends
    return tuple(sends)
