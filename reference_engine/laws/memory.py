"""Where a law keeps what it reuses: the face it shows to an engine that really computes.

A law that can be followed has `rooms`, one per layer group, in the order of its `groups` option. An engine makes a
pool of that many slots for each and asks, call by call,

    law.slots(lease, group, start, end)          slots of positions [start, end): attention groups
    law.state(lease, group, position)            slot of the state behind `position` tokens: recurrent groups
    law.stores(lease, group, start, end)         which states of the call [start, end) go where
    law.moves.drain()                            what has to move before anything else is read or written

Slot numbers are places in the group's own pool. The law alone says which memory belongs to whom; the engine computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vocabulary.groups import LayerGroup

Slots = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of one layer group."""

    group: LayerGroup
    slots: int | None
    """Tokens of attention groups, states of recurrent ones; None: the law knows no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Content of one group's pool that is copied, in all layers of the group."""

    group: int
    source: Slots
    target: Slots
    """As many; none of them is also a source, unless source and target are the same places."""
    turn: int = 0
    """Positions that copied keys are rotated by."""


@dataclass(slots=True)
class Moves:
    """Moves in the order the law decided them; kept only where an engine follows."""

    followed: bool = False
    _made: list[Move] = field(default_factory=list)

    def add(self, group: int, source: Slots | int, target: Slots | int, turn: int = 0) -> None:
        """Copy slots of a group."""
        if self.followed:
            self._made.append(Move(group, np.atleast_1d(source), np.atleast_1d(target), turn))

    def drain(self) -> list[Move]:
        """All moves since the last call."""
        made, self._made = self._made, []
        return made
