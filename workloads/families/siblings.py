"""Siblings: prompts that share a prefix and go on differently.

    sibling 1   [ shared S ][ own 1 ]     cold
    sibling 2   [ shared S ][ own 2 ]     hits the shared part
    ...         then the next group, with another shared part

Separates: block from token granularity; junctions (a hybrid's second sibling misses, its third hits);
slots (which cannot share). With two siblings per group it is the cold/warm pair for timing.
"""

from __future__ import annotations

from workloads.families.base import Count, Parameters
from workloads.lengths import Length
from workloads.sequence import Send
from workloads.source import TokenSource


class Siblings(Parameters):
    """`groups` unrelated shared prefixes, each followed by `count` suffixes."""

    shared: Length = 1024
    suffix: Length = 14
    count: Count = 3
    groups: Count = 1


def siblings(parameters: Siblings, source: TokenSource) -> tuple[Send, ...]:
    """Sends group by group."""
    sends = []
    for group in range(parameters.groups):
        shared = source.fresh(parameters.shared)
        firsts: list[int] = []
        for number in range(parameters.count):
            own = source.differing(parameters.suffix, *firsts)
            firsts.append(own[0])
            label = f"{group + 1}.{number + 1}" if parameters.groups > 1 else f"sibling {number + 1}"
            sends.append(Send(label=label, parts=(shared, own), max_tokens=parameters.max_tokens))
    return tuple(sends)
