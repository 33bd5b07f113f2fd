"""Grow: a chat whose every turn sends back all before it, with the IDs the engine generated.

    turn 1   [ first ]                                  -> answer 1
    turn 2   [ first ][ answer 1 ][ question ]          -> answer 2
    turn 3   [ first ][ answer 1 ][ question ][ answer 2 ][ question ]

Separates: whether generated tokens can be hit, and where the resume point of a turn lies.
"""

from __future__ import annotations

from workloads.families.base import Count, Parameters
from workloads.lengths import Length
from workloads.sequence import OutputOf, Part, Send
from workloads.source import TokenSource


class Grow(Parameters):
    """Lengths in tokens; `max_tokens` is the length of an answer."""

    max_tokens: Length = 30
    first: Length = 300
    question: Length = 20
    turns: Count = 3


def grow(parameters: Grow, source: TokenSource) -> tuple[Send, ...]:
    """One send per turn."""
    parts: tuple[Part, ...] = (source.fresh(parameters.first),)
    sends = []
    for turn in range(parameters.turns):
        sends.append(Send(label=f"turn {turn + 1}", parts=parts, max_tokens=parameters.max_tokens))
        parts = (*parts, OutputOf(turn), source.any(parameters.question))
    return tuple(sends)
