"""The host-memory prompt cache of llama.cpp's server (`--cache-ram`): whole slots put aside, checkpoints included.

Source: llama.cpp tools/server/server-task.cpp (`server_prompt_cache`) at the commit inside llama-cpp-python 0.3.36,
executed with b11549.

    save   nothing where a stored prompt begins with all of the slot's tokens; otherwise stored prompts that the slot's
           tokens begin with go, then the oldest until the new one fits
    take   the stored prompt of which the request keeps at least a quarter, and which beats what the slot holds in both
           shares: kept tokens of the stored ones, and of the request's; it is moved out
    trim   the oldest go until the limits hold: `cache_ram_mib`, or without one the context's tokens

Shares are 32-bit floats, as in the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference_engine.laws.llama_cpp.checkpoints import Checkpoint
from reference_engine.laws.llama_cpp.memory import Snapshot
from reference_engine.laws.parts.chained import Tokens
from reference_engine.laws.parts.history import common_prefix
from vocabulary.engine import Span
from vocabulary.errors import LawDoesNotCover

LEAST_KEPT = np.float32(0.25)
"""Of a stored prompt's tokens, below which it is left alone."""
MIB = 1 << 20
MOST_BYTES_PER_TOKEN, MOST_BYTES_PER_STATE = 1 * MIB, 64 * MIB
"""Assumed sizes where the options name none. They are bounds, not estimates: full attention of 126 layers with 8 KV
heads of 128 in 16 bits takes 0.5 MiB per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """What a copied sequence takes in host memory."""

    per_token: int
    """Per position in full-attention layers, in bytes."""
    per_window_cell: int = 0
    """Per copied cell in window layers, in bytes."""
    recurrent: int = 0
    """One recurrent state, in bytes."""
    bound: bool = False
    """True: each is at least the true size; near the limit nothing can be said."""

    def of(self, state: Snapshot, *, partial: bool) -> int:
        """Bytes of one copy; a checkpoint is `partial`, without the full-attention layers."""
        cells = 0 if state.cells is None else len(state.cells)
        return (0 if partial else self.per_token * (state.last + 1)) + self.per_window_cell * cells + self.recurrent


@dataclass(frozen=True, slots=True)
class Most:
    """What may be stored at once, checkpoints included."""

    tokens: int
    window_cells: int
    states: int


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One slot's content put aside."""

    ids: Tokens
    moved: tuple[Span, ...]
    """Positions whose KV was computed elsewhere and shifted there."""
    checkpoints: tuple[Checkpoint, ...]
    state: Snapshot
    size: int
    """Bytes, checkpoints included."""


def share(part: int, whole: int) -> np.float32:
    """As the server divides."""
    return np.float32(part) / np.float32(whole)


class RamCache:
    """The stored prompts, oldest first."""

    def __init__(self, limit_bytes: int | None, limit_tokens: int | None, sizes: StateBytes) -> None:
        """`limit_bytes` None: `limit_tokens` (the context's cells) bounds it instead."""
        self._limit_bytes, self._limit_tokens, self._sizes = limit_bytes, limit_tokens, sizes
        self.stored: list[Stored] = []

    def most(self, slot_cells: int, window: int, checkpoints: int) -> Most | None:
        """Bounds, given the cells of a slot and of a copied window, and a slot's checkpoints; None: there are none."""
        limit, sizes = self._limit_bytes, self._sizes
        if limit is None:
            assert self._limit_tokens is not None
            tokens = self._limit_tokens + slot_cells  # held only once the newest has been added
        elif sizes.per_token:
            tokens = limit // sizes.per_token
        else:
            return None
        # Checkpoints of one prompt differ in length, so n tokens have at most n of them and the copy of their end, and
        # no copy has more than n cells: over all n, min(checkpoints, window) + 1 cells per token.
        cells, states = tokens * (min(checkpoints, window) + 1), 2 * tokens
        if limit is not None and sizes.per_window_cell:
            cells = min(cells, limit // sizes.per_window_cell)
        if limit is not None and sizes.recurrent:
            states = min(states, limit // sizes.recurrent)
        return Most(tokens, cells, states)

    def save(self, ids: Tokens, moved: tuple[Span, ...], checkpoints: tuple[Checkpoint, ...], state: Snapshot) -> bool:
        """Copy a slot that holds `ids`; False where nothing was stored."""
        length = len(ids)
        if any(len(each.ids) >= length and common_prefix(each.ids, ids) == length for each in self.stored):
            return False
        size = self._sizes.of(state, partial=False) + sum(self._sizes.of(c.state, partial=True) for c in checkpoints)
        if self._limit_bytes is not None and size > self._limit_bytes:
            self._refuse_if_bound(size)
            return False
        self.stored = [each for each in self.stored if common_prefix(each.ids, ids) < len(each.ids)]
        if self._limit_bytes is not None:
            self._drop_oldest_above(self._limit_bytes - size)
        self.stored.append(Stored(ids, moved, checkpoints, state, size))
        return True

    def better(self, held: Tokens, ids: Tokens) -> Stored | None:
        """What a slot that holds `held` would exchange its content for, given the request `ids`."""
        common = common_prefix(held, ids)
        kept, similar = share(common, len(held)) if len(held) else np.float32(-1), share(common, len(ids))
        best: Stored | None = None
        for each in self.stored:
            mine = common_prefix(each.ids, ids)
            kept_of_it, similar_to_it = share(mine, len(each.ids)), share(mine, len(ids))
            if kept_of_it >= LEAST_KEPT and kept < kept_of_it and similar < similar_to_it:
                best, kept, similar = each, kept_of_it, similar_to_it
        return best

    def trim(self) -> None:
        """Hold the limits."""
        if self._limit_bytes is not None:
            self._drop_oldest_above(self._limit_bytes)
        elif self._limit_tokens is not None:
            while sum(len(each.ids) for each in self.stored) > self._limit_tokens:
                del self.stored[0]

    def _drop_oldest_above(self, limit: int) -> None:
        while self.stored and (size := sum(each.size for each in self.stored)) > limit:
            self._refuse_if_bound(size)
            del self.stored[0]

    def _refuse_if_bound(self, size: int) -> None:
        if self._sizes.bound:
            raise LawDoesNotCover(
                f"llama.cpp: the RAM cache may be full ({size // MIB} MiB at most) and its order of dropping "
                f"depends on sizes; give state_bytes_per_token, and window_bytes_per_token or recurrent_state_bytes"
            )
