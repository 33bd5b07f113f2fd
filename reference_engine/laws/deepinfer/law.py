"""DeepInfer 0.1.0: no lookup; a hit is injected, or a request is a fork.

    independent request          0, whatever came before
    external_hit = H             start = max(0, H - external_replay), 0 <= H <= L-1, no block alignment
    fork_of = PARENT             min(PARENT's computed tokens, L-1); whole blocks shared, the last one copied

An external store (not in the release) fills `[0, start)`; the engine allocates fresh blocks for the whole prompt. A
fork needs a parent that is still there: here sequences stay until `reset`. The fork takes the parent's tokens,
generated ones included, so its prompt has to begin with them. While the parent's prompt is incomplete the fork waits in
front of it, and its ID must begin with "_": without that the engine hands it the parent's own blocks and clones
nothing. Preemption (default: the request ends) is not modelled.

Followed by an engine: blocks, rings and states of finished sequences stay where they are, and serve as the external
store. `[0, start)` is copied from one that begins with the same tokens. A prefill writes borrowed areas beside its
sequence's ring, whose last positions then move into the ring, because a step longer than the ring would overwrite what
it still reads. Rules that read what no sequence has any more (a window or a state behind an earlier position) are only
predicted.

Source: DeepInfer 0.1.0, scheduler and block manager executed without CUDA. What takes the place of the external store
is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference_engine.laws.base import Expectation, Ids, Law, Lease
from reference_engine.laws.deepinfer.replay import (
    BLOCK,
    Consumers,
    HandOver,
    Mode,
    Ring,
    chunk_spans,
    external_start,
    hand_over,
)
from reference_engine.laws.memory import Room, Slots
from reference_engine.laws.parts.counted_blocks import CountedBlocks
from reference_engine.laws.parts.history import History, common_prefix
from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import LawDoesNotCover, RequestRefused
from vocabulary.groups import Kind, LayerGroup
from vocabulary.ledger import Cause, Ledger


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence, alive or kept; what a lease holds."""

    lease: Lease
    blocks: list[int]
    """Block table."""
    shared: int
    """Leading blocks that belong to the parent as well."""
    copied_from: int | None
    """The parent's block whose content begins the first block of its own; None: nothing was copied."""
    state_slot: int
    """Recurrent state."""
    state_from: int | None
    """The parent's slot that was cloned into it."""
    areas: list[int]
    """Window: the ring, then as many areas of its size as a prefill step borrows."""
    ring_end: int = 0
    """The ring holds the last positions before it, of this sequence or of the longer one it was copied from."""
    finished: bool = False


class DeepInfer(Law):
    """Sequences by request ID over blocks of 128 tokens."""

    can_salt = False

    def __init__(
        self,
        law_id: str,
        groups: tuple[LayerGroup, ...],
        *,
        ring: Ring | None,
        consumers: Consumers,
        external_replay: int,
        chunk_tokens: int | None,
        context_parallel: int,
    ) -> None:
        """`external_replay` R and `consumers` are the two replay rules; see `replay`."""
        super().__init__()
        self.id, self.granule, self.pool_tokens = law_id, 1, None
        self.groups, self.ring, self.consumers = tuple(map(str, groups)), ring, consumers
        self.recurrent, self._kinds = any(group.kind is Kind.GDN for group in groups), [each.kind for each in groups]
        # Layers that are cut short for most positions are an architecture that the reference engine has not.
        self.rooms = tuple(Room(group, None) for group in groups) if consumers.mode is Mode.OFF else ()
        self.chunks_bind = chunk_tokens is not None
        self.external_replay, self.chunk_tokens, self.context_parallel = external_replay, chunk_tokens, context_parallel
        self.blocks, self.states, self.areas = CountedBlocks(), CountedBlocks(), CountedBlocks()
        self.history = History()
        self._sequences: dict[str, Sequence] = {}

    def admit(self, request: TokenRequest) -> Lease:
        """Take what was injected or forked; RequestRefused for what the engine aborts on or refuses."""
        if request.external_hit is not None and request.fork_of is not None:
            raise LawDoesNotCover(f"{self.id}: request {request.request_id} has an external hit and a parent")
        if request.namespace is not None or request.lora is not None:
            raise LawDoesNotCover(f"{self.id}: there are no namespaces or adapters to state a rule for")
        if request.request_id in self._sequences and not self._sequences[request.request_id].finished:
            raise RequestRefused(f"{self.id}: request ID {request.request_id!r} is alive; give each request its own")
        if request.fork_of is not None:
            return self._fork(request, self._parent(request))
        found = self._injected(request)
        start = external_start(found, self.external_replay)
        store = self._stored(request, start) if start and self.moves.followed else None
        lease = Lease(request, self._expectation(request, found, start))
        lease.valid_from = start if self.external_replay else 0
        sequence = self._keep(lease, self.blocks.take(-(-request.prompt_len // BLOCK)), 0, None, None)
        if store is not None:
            self._copy_positions(store, sequence, 0, start)
            if not self.external_replay:
                self._copy_ring(store, sequence)
        return lease

    def chunk_end(self, lease: Lease) -> int:
        """The chunk budget, or the prompt's end."""
        spans = chunk_spans(lease.computed_len, lease.request.prompt_len, self.chunk_tokens, self.context_parallel)
        return spans[0][1]

    def computed(self, lease: Lease, end: int) -> None:
        """Nothing is published; only the fork of this sequence sees it."""
        before, end = lease.computed_len, max(lease.computed_len, end)
        if end == before:
            return
        sequence, prompt_len = self._held(lease), lease.request.prompt_len
        borrowed = sequence.areas[1:]
        if self.ring is not None and borrowed:
            position = np.arange(max(before, end - self.ring.slots), end)
            self._move(Kind.SWA, self._borrowed(lease, position), self._in_ring(sequence, position))
            if end >= prompt_len:
                self.areas.drop(borrowed)
                del sequence.areas[1:]
        lease.computed_len, sequence.ring_end = end, max(end, sequence.ring_end)
        self.history.add(lease.ids[:end])

    def append(self, lease: Lease, token_id: int) -> None:
        """Take another block when the last one is full."""
        sequence = self._held(lease)
        if lease.length == len(sequence.blocks) * BLOCK:
            sequence.blocks += self.blocks.take(1)
        lease.push(token_id)

    def release(self, lease: Lease) -> None:
        """The sequence is over and stays for its forks."""
        self._held(lease).finished = True

    def reset(self) -> None:
        """Drop every sequence."""
        assert all(sequence.finished for sequence in self._sequences.values()), "reset while requests run"
        for sequence in self._sequences.values():
            self._drop(sequence)
        self._sequences.clear()
        self.history.clear()

    def check_integrity(self) -> None:
        """References are the block tables, and every sequence has blocks, a state slot and areas of its own."""
        sequences = list(self._sequences.values())
        self.blocks.check_integrity(block for sequence in sequences for block in sequence.blocks)
        self.states.check_integrity(sequence.state_slot for sequence in sequences)
        areas = [area for sequence in sequences for area in sequence.areas]
        self.areas.check_integrity(areas)
        assert len({sequence.state_slot for sequence in sequences}) == len(sequences), "state slot of two sequences"
        assert len(set(areas)) == len(areas), "area of two sequences"
        for sequence in sequences:
            assert len(sequence.blocks) == -(-sequence.lease.length // BLOCK), "block table and length disagree"

    def hand_over(self, request: TokenRequest) -> HandOver:
        """What the engine does for a request right now, window and consumers included; holds nothing.

        Raises LawDoesNotCover without a sliding window: there is nothing beyond the hit to hand over.
        """
        if self.ring is None:
            raise LawDoesNotCover(f"{self.id}: layer groups {', '.join(self.groups)} have no sliding window")
        if request.fork_of is not None:
            parent = self._parent(request)
            start = self._reuse(request, parent)
            valid = min(parent.lease.valid_from, start)
        else:
            found = self._injected(request)
            start = external_start(found, self.external_replay)
            valid = start if self.external_replay else 0
        return hand_over(
            self.ring,
            self.consumers,
            request.prompt_len,
            start,
            valid_start=valid,
            chunk_tokens=self.chunk_tokens,
            context_parallel=self.context_parallel,
        )

    def _injected(self, request: TokenRequest) -> int:
        found = request.external_hit or 0
        if not 0 <= found < request.prompt_len:
            raise RequestRefused(
                f"{self.id}: request {request.request_id}: an external hit of {found} tokens of {request.prompt_len} "
                f"aborts the engine; inject at most {request.prompt_len - 1}"
            )
        if found and self.recurrent:
            raise LawDoesNotCover(
                f"{self.id}: no law for an external hit with recurrent state; no store for it is known"
            )
        return found

    def _parent(self, request: TokenRequest) -> Sequence:
        parent = self._sequences.get(request.fork_of or "")
        if parent is None:
            raise RequestRefused(f"{self.id}: request {request.request_id}: no sequence {request.fork_of!r} to fork")
        return parent

    def _reuse(self, request: TokenRequest, parent: Sequence) -> int:
        """Tokens a fork takes over; RequestRefused where the engine refuses it or the prompt is not the parent's."""
        lease, name = parent.lease, request.request_id
        if not lease.computed_len:
            raise RequestRefused(f"{self.id}: request {name}: {request.fork_of!r} has computed nothing to fork yet")
        if Feature.PROMPT_LOGPROBS in lease.request.features | request.features:
            raise RequestRefused(f"{self.id}: request {name}: no fork with prompt log-probabilities")
        reuse = min(lease.computed_len, request.prompt_len - 1)
        ids: Ids = request.array[:reuse]
        if (same := common_prefix(ids, lease.ids[:reuse])) < reuse:
            raise RequestRefused(
                f"{self.id}: request {name}: a fork begins with its parent's tokens; position {same} differs from "
                f"{request.fork_of!r}"
            )
        if lease.computed_len < lease.request.prompt_len and not name.startswith("_"):
            raise LawDoesNotCover(
                f"{self.id}: request {name}: a fork of an unfinished prompt without a leading underscore in its ID "
                f"continues on its parent's own blocks; nothing is cloned"
            )
        return reuse

    def _fork(self, request: TokenRequest, parent: Sequence) -> Lease:
        reuse = self._reuse(request, parent)
        complete = parent.lease.computed_len >= parent.lease.request.prompt_len and reuse > 0
        # A complete parent's last block is copied even when it is full: the fork goes straight to decoding.
        shared = -(-reuse // BLOCK) - 1 if complete else reuse // BLOCK
        copied = parent.blocks[shared] if complete or reuse % BLOCK else None
        if self.moves.followed:
            self._check_followed(request, parent, reuse)
        lease = Lease(request, self._expectation(request, reuse, reuse))
        lease.valid_from = min(parent.lease.valid_from, reuse)
        table = self.blocks.share(parent.blocks[:shared])
        table += self.blocks.take(-(-request.prompt_len // BLOCK) - shared)
        sequence = self._keep(lease, table, shared, copied, parent.state_slot)
        if copied is not None:
            self._copy_positions(parent, sequence, shared * BLOCK, reuse)
        self._copy_ring(parent, sequence)
        self._move(Kind.GDN, np.array([parent.state_slot]), np.array([sequence.state_slot]))
        return lease

    def _keep(self, lease: Lease, table: list[int], shared: int, copied: int | None, state: int | None) -> Sequence:
        sequence = Sequence(lease, table, shared, copied, self.states.take(1)[0], state, self._take_areas(lease))
        # Whom the sequence replaces gives back what it held only now: it may be what was copied.
        if (old := self._sequences.pop(lease.request.request_id, None)) is not None:
            self._drop(old)
        lease.held = self._sequences[lease.request.request_id] = sequence
        return sequence

    def _drop(self, sequence: Sequence) -> None:
        self.blocks.drop(sequence.blocks)
        self.states.drop([sequence.state_slot])
        self.areas.drop(sequence.areas)

    # -- memory ------------------------------------------------------------------------------------------------------

    def slots(self, lease: Lease, group: int, start: int, end: int) -> Slots:
        """As `Law.slots`."""
        sequence, position = self._held(lease), np.arange(start, end)
        if self._kinds[group] is Kind.FULL:
            return self._in_blocks(sequence, position)
        if lease.computed_len >= lease.request.prompt_len:
            return self._in_ring(sequence, position)
        old = position[: max(lease.computed_len - start, 0)]
        return np.concatenate([self._in_ring(sequence, old), self._borrowed(lease, position[len(old) :])])

    def state(self, lease: Lease, group: int, position: int) -> int:
        """As `Law.state`: the sequence's own, whatever the position."""
        return self._held(lease).state_slot

    def _take_areas(self, lease: Lease) -> list[int]:
        """A ring, and areas for the longest prefill step: its first."""
        if self.ring is None:
            return []
        start, prompt_len = lease.computed_len, lease.request.prompt_len
        _, end = chunk_spans(start, prompt_len, self.chunk_tokens, self.context_parallel)[0]
        return self.areas.take(1 - (start - end) // self.ring.slots)

    @staticmethod
    def _in_blocks(sequence: Sequence, position: Slots) -> Slots:
        places: Slots = np.asarray(sequence.blocks, np.int64)[position // BLOCK] * BLOCK + position % BLOCK
        return places

    def _in_ring(self, sequence: Sequence, position: Slots) -> Slots:
        assert self.ring is not None
        places: Slots = sequence.areas[0] * self.ring.slots + position % self.ring.slots
        return places

    def _borrowed(self, lease: Lease, position: Slots) -> Slots:
        """Places of the prefill step that begins where the lease is computed up to."""
        assert self.ring is not None
        ahead, slots = position - lease.computed_len, self.ring.slots
        areas = np.asarray(self._held(lease).areas[1:], np.int64)
        places: Slots = areas[ahead // slots] * slots + ahead % slots
        return places

    def _copy_positions(self, source: Sequence, target: Sequence, start: int, end: int) -> None:
        position = np.arange(start, end)
        self._move(Kind.FULL, self._in_blocks(source, position), self._in_blocks(target, position))

    def _copy_ring(self, source: Sequence, target: Sequence) -> None:
        if self.ring is not None:
            slots = np.arange(self.ring.slots)
            self._move(Kind.SWA, self._in_ring(source, slots), self._in_ring(target, slots))
            target.ring_end = source.ring_end

    def _move(self, kind: Kind, source: Slots, target: Slots) -> None:
        for group, each in enumerate(self._kinds):
            if each is kind:
                self.moves.add(group, source, target)

    def _window_held(self, sequence: Sequence, start: int) -> bool:
        """Whether a sequence's ring still has what a position behind `start` tokens sees."""
        if self.ring is None:
            return True
        first = max(start - self.ring.window + 1, min(sequence.lease.valid_from, start), 0)
        return first >= min(start, sequence.ring_end - self.ring.slots)

    def _check_followed(self, request: TokenRequest, parent: Sequence, reuse: int) -> None:
        """LawDoesNotCover for a fork that begins where its parent's state or window is not any more."""
        if (self.recurrent and reuse != parent.lease.computed_len) or not self._window_held(parent, reuse):
            raise LawDoesNotCover(
                f"{self.id}: request {request.request_id} begins behind {reuse} of {parent.lease.computed_len} tokens "
                f"of {request.fork_of!r}; state and window are not kept there. An engine forks with a prompt of more "
                f"than {parent.lease.computed_len} tokens"
            )

    def _stored(self, request: TokenRequest, start: int) -> Sequence:
        """The latest finished sequence that holds the first `start` tokens."""
        ids: Ids = request.array[:start]
        for sequence in reversed(self._sequences.values()):
            lease = sequence.lease
            if (
                sequence.finished
                and common_prefix(ids, lease.ids[: lease.computed_len]) == start
                and (self.external_replay or self._window_held(sequence, start))
            ):
                return sequence
        window = "" if self.ring is None or self.external_replay else " and the window before them"
        raise RequestRefused(
            f"{self.id}: request {request.request_id}: nothing holds its first {start} tokens{window}, which the "
            f"injected hit stands for; send a prompt that begins with them first, after the last reset"
        )

    def _expectation(self, request: TokenRequest, found: int, start: int) -> Expectation:
        length = request.prompt_len
        lcp = max(self.history.lcp(request.array), found)
        ledger = Ledger.waterfall(
            length,
            [
                (Cause.NOVEL, lcp),
                (Cause.LAST_TOKEN, length - 1),
                (Cause.DISABLED, found),
                (Cause.REPLAY, start),
            ],
        )
        return Expectation(
            hit_len=start,
            position_start=start,
            ledger=ledger,
            per_group=dict.fromkeys(self.groups, start),
            junction=start,
        )

    @staticmethod
    def _held(lease: Lease) -> Sequence:
        assert isinstance(lease.held, Sequence)
        return lease.held
