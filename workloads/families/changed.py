"""Changed: the founding comparison, "five answers to one prompt".

    A    [ shared S            ][ x x ][ own A ]
    B    [ shared S            ][ x x ][ own B ]      true common prefix S + extra
    B'   [ S, one token changed ][ x x ][ own B ]     true common prefix = that token's index
    sent A, B, B', A on an empty cache, then A, B, B' once more

Separates: token, page and block granularity; what one early change costs; one slot from many entries.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from workloads.families.base import Parameters
from workloads.lengths import Length, Span
from workloads.sequence import Part, Send
from workloads.source import TokenSource


class Changed(Parameters):
    """Lengths in tokens; `changed_index` is the position of the token that differs in B'."""

    shared: Length = 1024
    suffix: Length = 14
    extra: Span = 2
    """Leading suffix tokens that A and B have in common."""
    changed_index: Span = 17

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.extra >= self.suffix:
            raise ValueError(f"extra = {self.extra} must be below suffix = {self.suffix}")
        if self.changed_index >= self.shared:
            raise ValueError(f"changed_index = {self.changed_index} must be below shared = {self.shared}")
        return self


def changed(parameters: Changed, source: TokenSource) -> tuple[Send, ...]:
    """A, B, B', A, then A, B, B' again."""
    shared = source.fresh(parameters.shared)
    own_a = source.any(parameters.suffix)
    common, rest = own_a[: parameters.extra], parameters.suffix - parameters.extra
    own_b = (common, source.differing(rest, own_a[parameters.extra]))
    at = parameters.changed_index
    other = source.differing(1, shared[at])
    prompts: dict[str, tuple[Part, ...]] = {
        "A": (shared, own_a),
        "B": (shared, *own_b),
        "B'": (shared[:at], other, shared[at + 1 :], *own_b),
    }
    order = ("A", "B", "B'", "A", "A", "B", "B'")
    return tuple(Send(label=name, parts=prompts[name], max_tokens=parameters.max_tokens) for name in order)
