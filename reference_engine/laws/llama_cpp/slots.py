"""llama.cpp: slots, each a contiguous range of cells that holds one token sequence; nothing is shared between them.

Source: llama.cpp b11549, tools/server (`get_available_slot`, the prompt step of `update_slots`), read and executed
with memories that keep every position, RAM cache off, chunk reuse off; llama-cpp-python 0.3.36, `Llama.generate`.

    slot = idle slot that holds the most of the prompt, if that is more than `slot_prompt_similarity` of it
           (the lowest number among equals; 0 turns this off), else the least recently used idle slot
           (the highest number among the never used)
    hit  = longest common prefix with the slot's tokens, at most L-1; what the slot held behind it is overwritten

- A slot counts as used when its request ends; erasing it does not change that order.
- Similarity is computed and compared in 32-bit floats, as the server does.
- llama-cpp-python has one slot, and no cap where the slot holds exactly the prompt: the logits of its last position
  are still there, so nothing is computed.
"""

from __future__ import annotations

import numpy as np

from reference_engine.laws.base import Expectation, Ids, Law, Lease, PoolExhausted
from reference_engine.laws.parts.history import History, common_prefix
from vocabulary.engine import TokenRequest
from vocabulary.ledger import Cause, Ledger

UNBOUNDED = 1 << 32
"""Cells per slot where the pool has no limit: further apart than any prompt is long."""


class Slot:
    """One sequence and the cells it may use."""

    __slots__ = ("busy", "first_cell", "last_used", "number", "tokens")

    def __init__(self, number: int, first_cell: int) -> None:
        self.number, self.first_cell = number, first_cell
        self.tokens: Ids = np.empty(0, np.int32)
        """Tokens with KV, at positions 0, 1, ... of the range."""
        self.busy = False
        self.last_used = -1
        """Count of requests that had ended when this slot's last one did; -1: never used."""


class SlotSet:
    """The slots and the choice among them."""

    def __init__(self, count: int, similarity: float, cells: int) -> None:
        self.slots = [Slot(number, number * cells) for number in range(count)]
        self._similarity = np.float32(similarity)
        self._ended = 0

    def choose(self, ids: Ids) -> Slot | None:
        """The slot that serves this prompt; None while all are busy."""
        best, best_fraction = None, self._similarity
        for slot in self._idle() if self._similarity else ():
            fraction = np.float32(common_prefix(slot.tokens, ids)) / np.float32(len(ids))
            if fraction > best_fraction:
                best, best_fraction = slot, fraction
        return best or min(self._idle(), key=lambda slot: (slot.last_used, -slot.number), default=None)

    def release(self, slot: Slot) -> None:
        """The slot's request has ended."""
        slot.busy, slot.last_used = False, self._ended
        self._ended += 1

    def erase(self) -> None:
        """Empty every slot; the order of use stays."""
        for slot in self.slots:
            slot.tokens = slot.tokens[:0]

    def longest(self, ids: Ids) -> int:
        """The most that any slot holds of a prompt."""
        return max(common_prefix(slot.tokens, ids) for slot in self.slots)

    def _idle(self) -> list[Slot]:
        return [slot for slot in self.slots if not slot.busy]


class LlamaCppServer(Law):
    """llama-server with plain slots."""

    id = "llama.cpp"
    granule = 1
    can_salt = False

    def __init__(
        self, *, n_parallel: int = 1, slot_prompt_similarity: float = 0.1, n_ctx_slot: int | None = None
    ) -> None:
        """`n_ctx_slot`: cells of one slot in tokens; None: no limit (prediction only)."""
        super().__init__()
        self.pool_tokens = None if n_ctx_slot is None else n_parallel * n_ctx_slot
        self._cells = n_ctx_slot or UNBOUNDED
        self.set = SlotSet(n_parallel, slot_prompt_similarity, self._cells)
        self.history = History()
        self._leases: set[Lease] = set()

    def admit(self, request: TokenRequest) -> Lease:
        """Choose a slot and cut its sequence back to what the prompt shares with it."""
        ids = np.asarray(request.ids, np.int32)
        if len(ids) + request.max_tokens > self._cells:
            raise PoolExhausted(f"{len(ids)} + {request.max_tokens} tokens do not fit a slot of {self._cells}")
        slot = self.set.choose(ids)
        if slot is None:
            raise PoolExhausted(f"all {len(self.set.slots)} slots are busy")
        lease = Lease(request, self._expect(ids, slot))
        lease.held = slot
        lease.slots[:] = slot.first_cell + np.arange(len(lease.slots))
        slot.busy, slot.tokens = True, ids[: lease.expectation.hit_len]
        self._leases.add(lease)
        return lease

    def computed(self, lease: Lease, end: int) -> None:
        """The slot's sequence has grown."""
        lease.computed_len = max(lease.computed_len, end)
        self._slot(lease).tokens = lease.ids[: lease.computed_len]

    def append(self, lease: Lease, token_id: int) -> None:
        """The next cell of the range."""
        lease.ids[lease.length] = token_id
        lease.length += 1

    def release(self, lease: Lease) -> None:
        """The slot is idle and keeps its tokens."""
        self.history.add(lease.ids[: lease.computed_len])
        self.set.release(self._slot(lease))
        self._leases.remove(lease)

    def reset(self) -> None:
        """Erase every slot."""
        assert not self._leases, "reset while requests run"
        self.set.erase()
        self.history.clear()

    def check_integrity(self) -> None:
        """Every busy slot has one lease, and no sequence is longer than its range."""
        held = [self._slot(lease).number for lease in self._leases]
        assert sorted(held) == [slot.number for slot in self.set.slots if slot.busy], "busy slots and leases disagree"
        assert all(len(slot.tokens) <= self._cells for slot in self.set.slots), "sequence longer than its slot"

    def _cap(self, slot: Slot, length: int) -> int:
        """Most tokens of a prompt of `length` that its slot may give."""
        return length - 1

    def _expect(self, ids: Ids, slot: Slot) -> Expectation:
        length = len(ids)
        cap, anywhere = self._cap(slot, length), self.set.longest(ids)
        hit = min(common_prefix(slot.tokens, ids), cap)
        ledger = Ledger.waterfall(
            length,
            [
                # A sequence still being computed is in its slot before it is history.
                (Cause.NOVEL, max(self.history.lcp(ids), anywhere)),
                (Cause.LAST_TOKEN, cap),
                (Cause.EVICTED, anywhere),
                (Cause.SLOT, hit),
            ],
        )
        return Expectation(hit_len=hit, position_start=hit, ledger=ledger, per_group={"full": hit}, junction=hit)

    @staticmethod
    def _slot(lease: Lease) -> Slot:
        assert isinstance(lease.held, Slot)
        return lease.held


class LlamaCppPython(LlamaCppServer):
    """One context of llama-cpp-python."""

    id = "llama-cpp-python@0.3"
    caps_last_token = False

    def __init__(self, *, n_ctx: int | None = None) -> None:
        """`n_ctx`: cells of the context in tokens; None: no limit (prediction only)."""
        super().__init__(n_parallel=1, slot_prompt_similarity=0, n_ctx_slot=n_ctx)

    def _cap(self, slot: Slot, length: int) -> int:
        # A slot with as many tokens as the prompt holds exactly the prompt, or shares too little for the cap to matter.
        return length if len(slot.tokens) == length else length - 1
