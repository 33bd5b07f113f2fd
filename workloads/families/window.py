"""Window: siblings that share about one sliding window, with tails long enough to push it out.

    sibling 1   [ shared W-1 ][ own 1                        ]
    sibling 2   [ shared W-1 ][ own 2                        ]
    sibling 3   [ shared W-1 ][ own 3                        ]
    ...         then the same with W and with W+1 shared tokens, then a repeat of the last prompt

Separates: how many tokens before a boundary a window layer must still hold (W-1 or W, rounded to blocks or not), and
whether they are still held after a longer prompt went on: the second sibling may miss what the third hits.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from workloads.families.base import Count, Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Send
from workloads.source import TokenSource


class Window(Parameters):
    """`shared` lengths, each with `count` siblings; W is the engine's window."""

    shared: Annotated[tuple[Length, ...], Field(min_length=1)] = relative(("W-1", "W", "W+1", "2W"))
    suffix: Length = relative("2W+g")
    count: Count = 3


def window(parameters: Window, source: TokenSource) -> tuple[Send, ...]:
    """Length by length; the last sibling of each is sent twice."""
    sends = []
    for length in sorted(set(parameters.shared)):
        shared, firsts = source.fresh(length), list[int]()
        for number in range(1, parameters.count + 1):
            own = source.differing(parameters.suffix, *firsts)
            firsts.append(own[0])
            label = f"S={length} sibling {number}"
            sends.append(Send(label=label, parts=(shared, own), max_tokens=parameters.max_tokens))
        sends.append(sends[-1])
    return tuple(sends)
