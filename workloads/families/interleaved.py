"""Interleaved: several chats that take turns on one cache.

    chat 1   [ first 1 ]                          turn 1 of each chat
    chat 2   [ first 2 ]
    chat 1   [ first 1 ][ answer ][ question ]    turn 2 of each chat
    chat 2   [ first 2 ][ answer ][ question ]
    ...      then, on an empty cache, the same with the next number of chats

Separates: slots from trees. With n slots, n chats keep one each; from n+1 on every turn finds its slot taken by
another, and hits nothing, unless a store beside the slots holds what was pushed out.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from workloads.families.base import Count, Parameters
from workloads.lengths import Length, relative
from workloads.sequence import OutputOf, Part, Send
from workloads.source import TokenSource


class Interleaved(Parameters):
    """`chats` are the numbers of chats: 1 to 2n on an engine with n slots."""

    max_tokens: Length = 8
    chats: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 2, 3, 4)
    first: Length = relative("2g+9")
    question: Length = 13
    turns: Count = 3


def interleaved(parameters: Interleaved, source: TokenSource) -> tuple[Send, ...]:
    """For each number of chats: turn by turn, chat by chat."""
    sends: list[Send] = []
    for number, count in enumerate(parameters.chats):
        prompts: list[tuple[Part, ...]] = [(source.fresh(parameters.first),) for _ in range(count)]
        for turn in range(parameters.turns):
            for chat in range(count):
                sends.append(
                    Send(
                        label=f"{count} chats: {chat + 1}, turn {turn + 1}",
                        parts=prompts[chat],
                        max_tokens=parameters.max_tokens,
                        reset_before=number > 0 and turn == chat == 0,
                    )
                )
                prompts[chat] = (*prompts[chat], OutputOf(len(sends) - 1), source.any(parameters.question))
    return tuple(sends)
