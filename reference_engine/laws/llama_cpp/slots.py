"""The slots of llama.cpp's server and the choice among them.

Source: llama.cpp b11549, tools/server (`get_available_slot`), read at the commit inside llama-cpp-python 0.3.36 and
executed.

    slot = idle slot that holds the most of the prompt, if that is more than `slot_prompt_similarity` of it
           (the lowest number among equals; 0 turns this off), else the least recently used idle slot
           (the highest number among the never used)
    the RAM cache is asked where the slot was not chosen by its content, or would keep less than half of it

- A slot counts as used when its request ends; erasing it does not change that order.
- Shares are computed and compared in 32-bit floats, as the server does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reference_engine.laws.base import Ids
from reference_engine.laws.llama_cpp.checkpoints import Checkpoint
from reference_engine.laws.llama_cpp.memory import Memory
from reference_engine.laws.llama_cpp.places import Places
from reference_engine.laws.llama_cpp.ram_cache import Stored, share
from reference_engine.laws.parts.chained import Chained, Tokens
from reference_engine.laws.parts.history import common_prefix
from vocabulary.engine import Span

NO_IDS: Ids = np.empty(0, np.int32)
MOSTLY_LOST = np.float32(0.5)
"""A slot chosen by its content that would keep less than this share of it is put aside first."""


class Slot:
    """One sequence: its tokens, its memory and the memory's checkpoints."""

    __slots__ = ("busy", "checkpoints", "ids", "last_used", "length", "memory", "moved", "number", "places", "start")

    def __init__(self, number: int, memory: Memory, places: Places) -> None:
        self.number, self.memory, self.places = number, memory, places
        self.ids: Tokens
        """A sequence that begins with what it holds."""
        self.start: int | None
        """What tells the first token of `ids` from others; None: there is none."""
        self.length = 0
        """Tokens with KV, at positions 0, 1, ..."""
        self.moved: tuple[Span, ...] = ()
        """Positions whose KV was computed elsewhere and shifted there, ascending."""
        self.checkpoints: list[Checkpoint] = []
        self.busy = False
        self.last_used: int | None = None
        """Count of requests that had ended when this slot's last one did; None: never used."""
        self.follow(NO_IDS)

    @property
    def tokens(self) -> Tokens:
        """What it holds."""
        return self.ids[: self.length]

    def follow(self, ids: Tokens) -> None:
        """What it holds is the begin of `ids`."""
        self.ids, self.start = ids, first_of(ids)

    def shrink(self, length: int) -> None:
        """Cut tokens and memory back."""
        self.length = length
        self.moved = below(self.moved, length)
        self.memory.cut(length)
        self.places.cut(length)

    def clear(self) -> None:
        """Forget the sequence and its checkpoints."""
        self.shrink(0)
        self.checkpoints = []

    def load(self, stored: Stored) -> None:
        """Hold what was put aside."""
        self.follow(stored.ids)
        self.length, self.moved, self.checkpoints = len(stored.ids), stored.moved, list(stored.checkpoints)
        self.memory.restore(stored.state)


@dataclass(frozen=True, slots=True)
class Choice:
    """The slot for a prompt."""

    slot: Slot
    exchange: bool
    """Whether the RAM cache is asked to save and replace its content."""


class SlotSet:
    """The slots of one server."""

    def __init__(self, similarity: float, places: Sequence[Places], memory: Callable[[int], Memory]) -> None:
        """One slot for each of `places`; `memory(number)` makes a slot's memory."""
        self.slots = [Slot(number, memory(number), each) for number, each in enumerate(places)]
        self._similarity = np.float32(similarity)
        self._ended = 0

    def common(self, ids: Tokens) -> list[int]:
        """Length of the common prefix of each slot's tokens with a prompt."""
        start = first_of(ids)  # most slots differ from the first token on
        return [min(common_prefix(slot.ids, ids), slot.length) if slot.start == start else 0 for slot in self.slots]

    def choose(self, ids: Tokens, common: Sequence[int]) -> Choice | None:
        """The slot that serves this prompt, with the slots' `common` lengths; None while all are busy."""
        best, best_share = None, self._similarity
        for slot in self.idle() if self._similarity else ():
            if not common[slot.number]:
                continue
            mine = share(common[slot.number], len(ids))
            if mine > best_share:
                best, best_share = slot, mine
        if best is not None:
            kept = best_share * np.float32(len(ids)) / np.float32(best.length)
            return Choice(best, bool(kept < MOSTLY_LOST))
        oldest = min(self.idle(), key=_age, default=None)
        return None if oldest is None else Choice(oldest, True)

    def release(self, slot: Slot) -> None:
        """The slot's request has ended."""
        slot.busy, slot.last_used = False, self._ended
        self._ended += 1

    def idle(self) -> list[Slot]:
        """Slots without a request, by number."""
        return [slot for slot in self.slots if not slot.busy]


def below(spans: Iterable[Span], length: int) -> tuple[Span, ...]:
    """What lies below a position."""
    return tuple((start, min(end, length)) for start, end in spans if start < length)


def first_of(ids: Tokens) -> int | None:
    """The first token, or the number of the first block; None: there is none."""
    if not len(ids):
        return None
    return (ids.blocks if isinstance(ids, Chained) else ids).item(0)


def _age(slot: Slot) -> tuple[bool, int, int]:
    """Never used first, of these the highest number; then by the end of the last request."""
    return slot.last_used is not None, slot.last_used or 0, -slot.number
