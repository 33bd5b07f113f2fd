"""Poison: cached tokens in places where they must not be served from the cache.

    original    [ x ][ block a ][ block b ][ tail ]
    swapped     [ x'][ block b ][ block a ][ tail ]     the same blocks in another order
    behind      [ x'][ block a ][ block b ][ tail ]     the same blocks behind another first token
    shifted     [ block a ][ block b ][ tail ]          the same tokens, one position earlier
    reset
    original    [ x ][ block a ][ block b ][ tail ]     known only to a cache that did not forget
    original    [ x ][ block a ][ block b ][ tail ]     hits: the cache works

Separates: keys over the whole prefix from keys over a block's own content, and positions from contents: keys and values
depend on everything before them. Any hit but the last is the finding `forbidden_hit`, whatever any law says.
"""

from __future__ import annotations

from workloads.families.base import Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Part, Send
from workloads.source import TokenSource


class Poison(Parameters):
    """Lengths in tokens; the first token x is part of the first block."""

    block: Length = relative("2g")
    tail: Length = relative("g+1")


def poison(parameters: Poison, source: TokenSource) -> tuple[Send, ...]:
    """The original, its three poisons, and both sides of a reset."""
    # Four first tokens that no two of these prompts share.
    first, other, third = source.fresh(1), source.fresh(1), source.fresh(1)
    a, b = source.fresh(parameters.block), source.any(parameters.block)
    tail = source.any(parameters.tail)
    original: tuple[Part, ...] = (first, a, b, tail)

    def send(label: str, parts: tuple[Part, ...], *, forbidden: bool = True, reset: bool = False) -> Send:
        most = 0 if forbidden else None
        return Send(label=label, parts=parts, max_tokens=parameters.max_tokens, at_most=most, reset_before=reset)

    return (
        send("original", original),
        send("swapped", (other, b, a, tail)),
        send("behind", (third, a, b, tail)),
        send("shifted", (a, b, tail)),
        send("original", original, reset=True),
        send("original", original, forbidden=False),
    )
