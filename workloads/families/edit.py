"""Edit: a long prompt changed in its middle, and the original again.

    original   [ head ][ cut ][ tail                ]
    delete     [ head ][ tail                ]               everything behind the head moves down
    original
    insert     [ head ][ new ][ cut ][ tail                ]  everything behind the head moves up
    original
    replace    [ head ][ new ][ tail                ]         the tail stays where it was

Separates: prefix caches, which lose everything behind the head, from engines that move cached chunks
(llama.cpp with n_cache_reuse, whose hit is then longer than P: finding `approximate`); and what a shorter prompt
leaves of a longer one in a slot.
"""

from __future__ import annotations

from workloads.families.base import Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Part, Send
from workloads.source import TokenSource


class Edit(Parameters):
    """Lengths in tokens; inserted and replacing pieces are as long as the `cut`."""

    head: Length = relative("2g+5")
    cut: Length = relative("g")
    tail: Length = relative("4g+7")


def edit(parameters: Edit, source: TokenSource) -> tuple[Send, ...]:
    """Each edit behind the original; they share exactly the head with it."""
    head, cut = source.fresh(parameters.head), source.any(parameters.cut)
    tail = source.differing(parameters.tail, cut[0])
    new = source.differing(parameters.cut, cut[0], tail[0])
    original: tuple[Part, ...] = (head, cut, tail)
    edits: dict[str, tuple[Part, ...]] = {
        "delete": (head, tail),
        "insert": (head, new, cut, tail),
        "replace": (head, source.differing(parameters.cut, cut[0], tail[0], new[0]), tail),
    }
    sends = []
    for name, parts in edits.items():
        sends.append(Send(label="original", parts=original, max_tokens=parameters.max_tokens))
        sends.append(Send(label=name, parts=parts, max_tokens=parameters.max_tokens))
    return (*sends, sends[0])
