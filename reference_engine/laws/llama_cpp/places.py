"""Places of what a context keeps, and of the copies its server makes: what an engine behind these laws computes with.

The memories of `memory.py` say which positions are held; a table says where each lies. Places are given when an engine
asks for them and taken back when the position is gone, so a forward still finds what the next one will overwrite:
llama.cpp computes a step of n_batch tokens in forwards of n_ubatch, an engine here may compute it at once, and the
window layers have n_batch places more than llama.cpp has cells. Copies that it keeps in host memory (checkpoints, the
RAM cache) have places behind those of the sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reference_engine.laws.base import PoolExhausted
from reference_engine.laws.memory import Moves, Room, Slots
from reference_engine.laws.parts.slot_pool import SlotPool
from vocabulary.groups import Kind, LayerGroup

NO_PLACES: Slots = np.empty(0, np.int64)


class Cells:
    """Places `[first, first + count)`, which one sequence has or several share; the lowest free ones are given."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self._free = first, np.ones(count, np.bool_)

    def take(self, count: int) -> Slots:
        """Give places away; PoolExhausted, and no effect, when there are too few."""
        found = np.flatnonzero(self._free)[:count]
        if len(found) < count:
            raise PoolExhausted(f"{count} cells wanted, {len(found)} of {len(self._free)} are free")
        self._free[found] = False
        return found + self.first

    def give_back(self, places: Slots) -> None:
        """They are free again."""
        self._free[places - self.first] = True

    def check(self, owned: Slots) -> None:
        """AssertionError unless every place is free or in `owned`, exactly once."""
        assert len(np.unique(owned)) == len(owned), "a place belongs to two positions"
        assert not self._free[owned - self.first].any(), "a place is free and owned"
        assert np.count_nonzero(self._free) + len(owned) == len(self._free), "a place is neither free nor owned"


class Table:
    """Where positions `[first, end)` of one sequence lie."""

    def __init__(self, cells: Cells) -> None:
        self.cells, self.first, self.places = cells, 0, NO_PLACES

    @property
    def end(self) -> int:
        """One past the last position that has a place."""
        return self.first + len(self.places)

    def grow(self, end: int) -> None:
        """Give every position below `end` a place."""
        if end > self.end:
            self.places = np.concatenate([self.places, self.cells.take(end - self.end)])

    def cut(self, length: int) -> None:
        """Positions `length` and up are gone; what comes next is `length`, if nothing is left."""
        kept = max(length - self.first, 0)
        self.cells.give_back(self.places[kept:])
        self.places, self.first = self.places[:kept], min(self.first, length)

    def drop_below(self, first: int) -> None:
        """Positions below `first` are gone."""
        if first > self.first:
            gone = first - self.first
            self.cells.give_back(self.places[:gone])
            self.places, self.first = self.places[gone:], first

    def keep(self, positions: Slots) -> None:
        """Only these positions stay, in this order; they are 0, 1, ... now."""
        kept = self.places[positions]
        self.cells.give_back(np.setdiff1d(self.places, kept))
        self.places = kept

    def begin(self, first: int, end: int) -> None:
        """Hold `[first, end)` instead of what it held."""
        self.cut(0)
        self.first = first
        self.grow(end)

    def at(self, start: int, end: int) -> Slots:
        """Places of `[start, end)`, all of which are held."""
        assert self.first <= start and end <= self.end, f"[{start}, {end}) of [{self.first}, {self.end})"
        return self.places[start - self.first : end - self.first]


@dataclass(slots=True, eq=False)
class Places:
    """Those of one sequence."""

    full: Table
    """In layers that keep every position."""
    window: Table
    """In layers that keep a window."""
    state: int
    """The running state's, in recurrent layers."""

    def cut(self, length: int) -> None:
        """Positions `length` and up are gone."""
        self.full.cut(length)
        self.window.cut(length)


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A copied sequence's places; empty where nothing of the kind was copied."""

    full: Slots
    window: Slots
    """Of its last positions."""
    states: Slots
    end: int
    """Tokens of the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How much there is of what."""

    groups: tuple[LayerGroup, ...]
    cells: int
    """Per stream, in layers that keep every position."""
    window_cells: int | None
    """Per stream, in layers that keep a window, what one step overwrites included; None: all keep every position."""
    sequences: int = 1
    unified: bool = False
    """One stream for all sequences."""
    copied_tokens: int = 0
    """Places for copies, in layers that keep every position."""
    copied_window_cells: int = 0
    copied_states: int = 0


class Store:
    """All places of one law."""

    def __init__(self, layout: Layout, moves: Moves) -> None:
        self._moves, groups = moves, layout.groups
        streams = 1 if layout.unified else layout.sequences
        windowed = layout.window_cells is not None
        self._windows = [at for at, each in enumerate(groups) if windowed and each.kind is Kind.SWA]
        self._recurrent = [at for at, each in enumerate(groups) if each.kind is Kind.GDN]
        self._whole = [at for at in range(len(groups)) if at not in self._windows + self._recurrent]
        window_cells = layout.window_cells or 0
        full = [Cells(stream * layout.cells, layout.cells) for stream in range(streams)]
        window = [Cells(stream * window_cells, window_cells) for stream in range(streams)]
        self.sequences = [
            Places(Table(full[number % streams]), Table(window[number % streams]), number)
            for number in range(layout.sequences)
        ]
        self._cells = [*full, *window]
        self._own = (streams * layout.cells, streams * window_cells, layout.sequences)
        """Places of the sequences, in the order of the pools."""
        self._pools = (
            SlotPool(layout.copied_tokens, "places for copied tokens"),
            SlotPool(layout.copied_window_cells, "places for copied window cells"),
            SlotPool(layout.copied_states, "places for copied states"),
        )
        self._copies: list[Copy] = []

    def rooms(self, groups: Sequence[LayerGroup]) -> tuple[Room, ...]:
        """One per group."""
        sizes = [own + (pool.size or 0) for own, pool in zip(self._own, self._pools, strict=True)]
        kinds = (self._whole, self._windows, self._recurrent)
        return tuple(
            Room(group, next(size for size, kind in zip(sizes, kinds, strict=True) if at in kind))
            for at, group in enumerate(groups)
        )

    def at(self, places: Places, group: int, start: int, end: int) -> Slots:
        """Places of `[start, end)` in an attention group; those not held yet are taken."""
        table = places.window if group in self._windows else places.full
        table.grow(end)
        return table.at(start, end)

    def copy(self, places: Places, end: int, window_first: int | None, *, whole: bool, kept: Iterable[Copy]) -> Copy:
        """Copy a sequence of `end` tokens: its state, its window layers from `window_first` on and, if `whole`, the
        layers that keep every position. `kept` are the copies still needed; the places of others are free then."""
        self.sweep(kept)
        full = places.full.at(0, end) if whole and self._whole else NO_PLACES
        window = NO_PLACES if window_first is None else places.window.at(window_first, end)
        states = np.array([places.state] if self._recurrent else [], np.int64)
        sources = (full, window, states)
        to_full, to_window, to_states = (
            pool.take(len(source)) + own for source, pool, own in zip(sources, self._pools, self._own, strict=True)
        )
        copy = Copy(to_full, to_window, to_states, end)
        self._copies.append(copy)
        self._move(sources, _parts(copy))
        return copy

    def load(self, places: Places, copy: Copy) -> None:
        """A sequence becomes what was copied; of partial copies, its full layers stay."""
        if len(copy.full):
            places.full.begin(0, copy.end)
        if len(copy.window):
            places.window.begin(copy.end - len(copy.window), copy.end)
        state = np.array([places.state] if self._recurrent else [], np.int64)
        self._move(_parts(copy), (places.full.places, places.window.places, state))

    def turn(self, places: Places, common: int, chunks: Iterable[tuple[int, int, int]]) -> None:
        """Chunks (from, to, length) of a sequence come to stand behind its first `common` positions: their keys turn
        where they lie, and whatever is not among them is gone."""
        kept = [np.arange(common)]
        for source, target, length in chunks:
            lying = places.full.at(source, source + length)
            for group in self._whole:
                self._moves.add(group, lying, lying, turn=target - source)
            kept.append(np.arange(source, source + length))
        places.full.keep(np.concatenate(kept))

    def sweep(self, kept: Iterable[Copy]) -> None:
        """Free the places of all other copies."""
        needed = {id(copy) for copy in kept}
        for copy in self._copies:
            if id(copy) not in needed:
                for pool, own, places in zip(self._pools, self._own, _parts(copy), strict=True):
                    pool.give_back(places - own)
        self._copies = [copy for copy in self._copies if id(copy) in needed]

    def check_held(self, places: Places, first: int | None, length: int) -> None:
        """AssertionError unless an idle sequence of `length` tokens has places, in window layers from `first` on."""
        if self._whole:
            assert (places.full.first, places.full.end) == (0, length), "a position lies nowhere"
        if self._windows and first is not None:
            assert (places.window.first, places.window.end) == (first, length), "a window position lies nowhere"

    def check(self, kept: Iterable[Copy]) -> None:
        """AssertionError unless every place is free, a sequence's or a copy's, exactly once, and `kept` have theirs."""
        for cells in self._cells:
            tables = [table for each in self.sequences for table in (each.full, each.window) if table.cells is cells]
            cells.check(np.concatenate([NO_PLACES, *(table.places for table in tables)]))
        known = {id(copy) for copy in self._copies}
        assert all(id(copy) in known for copy in kept), "a copy that is kept has lost its places"
        for number, (pool, own) in enumerate(zip(self._pools, self._own, strict=True)):
            pool.check_integrity(np.concatenate([NO_PLACES, *(_parts(copy)[number] for copy in self._copies)]) - own)

    def _move(self, sources: Sequence[Slots], targets: Sequence[Slots]) -> None:
        """Of each kind with sources."""
        for groups, source, target in zip((self._whole, self._windows, self._recurrent), sources, targets, strict=True):
            for group in groups if len(source) else ():
                self._moves.add(group, source, target)


def _parts(copy: Copy) -> tuple[Slots, Slots, Slots]:
    return copy.full, copy.window, copy.states
