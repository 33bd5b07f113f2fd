"""One forward call: rows, and for each layer group where they read and write."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reference_engine.kernels.shapes import StateBatch
from reference_engine.pools import SlotIndex


@dataclass(frozen=True, slots=True)
class Extend:
    """One request's share of a call in an attention group: rows at positions `[start, end)`."""

    rows: slice
    """Its queries among the rows of the call."""
    start: int
    """Position of the first row."""
    first_key: int
    """Position of the first key: 0, or where the first row's window begins."""
    keys: SlotIndex
    """Slots of positions `[first_key, end)`, in order; the rows' own are among them."""
    mask: Tensor | None
    """`[rows, keys]`, 0 or -inf; None where SDPA's own causal rule or no rule gives the same."""


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """A call in an attention group."""

    slots: SlotIndex
    """Where the rows' own keys and values go."""
    extends: tuple[Extend, ...]


@dataclass(frozen=True, slots=True)
class StateRows:
    """A call in a recurrent group."""

    batch: StateBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """n rows: a prefill chunk of one request, or one token (with drafts: several) each of some."""

    ids: Tensor  # [n] int64
    positions: Tensor  # [n] int64, absolute
    groups: tuple[AttentionRows | StateRows, ...]
    """In the order of the law's groups."""
    ends: tuple[int, ...]
    """One past the last row of each request in the call."""
