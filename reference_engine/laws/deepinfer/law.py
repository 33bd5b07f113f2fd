"""DeepInfer 0.1.0: no lookup; a hit is injected, or a request is a fork.

    independent request          0, whatever came before
    external_hit = H             start = max(0, H - external_replay), 0 <= H <= L-1, no block alignment
    fork_of = PARENT             min(PARENT's computed tokens, L-1); whole blocks shared, the last one copied

An external store (not in the release) fills `[0, start)`; the engine allocates fresh blocks for the whole prompt. A
fork needs a parent that is still there: here sequences stay until `reset`. The fork takes the parent's tokens,
generated ones included, so its prompt has to begin with them. While the parent's prompt is incomplete the fork waits in
front of it, and its ID must begin with "_": without that the engine hands it the parent's own blocks and clones
nothing. Preemption (default: the request ends) is not modelled.

Source: DeepInfer 0.1.0, scheduler and block manager executed without CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.laws.base import Expectation, Ids, Law, Lease
from reference_engine.laws.deepinfer.blocks import Blocks
from reference_engine.laws.deepinfer.replay import (
    BLOCK,
    Consumers,
    HandOver,
    Ring,
    chunk_spans,
    external_start,
    hand_over,
)
from reference_engine.laws.parts.history import History, common_prefix
from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import LawDoesNotCover, RequestRefused
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
    """Recurrent state and window ring."""
    state_from: int | None
    """The parent's slot that was cloned into it."""
    finished: bool = False


class DeepInfer(Law):
    """Sequences by request ID over blocks of 128 tokens."""

    can_salt = False

    def __init__(
        self,
        law_id: str,
        groups: tuple[str, ...],
        *,
        recurrent: bool,
        ring: Ring | None,
        consumers: Consumers,
        external_replay: int,
        chunk_tokens: int | None,
        context_parallel: int,
    ) -> None:
        """`external_replay` R and `consumers` are the two replay rules; see `replay`."""
        super().__init__()
        self.id, self.granule, self.pool_tokens = law_id, 1, None
        self.groups, self.recurrent, self.ring, self.consumers = groups, recurrent, ring, consumers
        self.external_replay, self.chunk_tokens, self.context_parallel = external_replay, chunk_tokens, context_parallel
        self.blocks, self.history = Blocks(), History()
        self._sequences: dict[str, Sequence] = {}
        self._state_slots = 0

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
        lease = Lease(request, self._expectation(request, found, start))
        self._keep(lease, self.blocks.take(-(-request.prompt_len // BLOCK)), 0, None, None)
        return lease

    def chunk_end(self, lease: Lease) -> int:
        """The chunk budget, or the prompt's end."""
        spans = chunk_spans(lease.computed_len, lease.request.prompt_len, self.chunk_tokens, self.context_parallel)
        return spans[0][1]

    def computed(self, lease: Lease, end: int) -> None:
        """Nothing is published; only the fork of this sequence sees it."""
        before, lease.computed_len = lease.computed_len, max(lease.computed_len, end)
        if lease.computed_len > before:
            self.history.add(lease.ids[: lease.computed_len])

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
            self.blocks.drop(sequence.blocks)
        self._sequences.clear()
        self.history.clear()
        self._state_slots = 0

    def check_integrity(self) -> None:
        """References are the block tables, and every sequence has the blocks and the state slot of its own."""
        sequences = list(self._sequences.values())
        self.blocks.check_integrity(block for sequence in sequences for block in sequence.blocks)
        assert len({sequence.state_slot for sequence in sequences}) == len(sequences), "state slot of two sequences"
        for sequence in sequences:
            assert len(sequence.blocks) == -(-sequence.lease.length // BLOCK), "block table and length disagree"

    def hand_over(self, request: TokenRequest) -> HandOver:
        """What the engine does for a request right now, window and consumers included; holds nothing.

        Raises LawDoesNotCover without a sliding window: there is nothing beyond the hit to hand over.
        """
        if self.ring is None:
            raise LawDoesNotCover(f"{self.id}: layer groups {', '.join(self.groups)} have no sliding window")
        found, start, valid = 0, 0, 0
        if request.fork_of is not None:
            start = self._reuse(request, self._parent(request))
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
        lease = Lease(request, self._expectation(request, reuse, reuse))
        table = self.blocks.share(parent.blocks[:shared])
        table += self.blocks.take(-(-request.prompt_len // BLOCK) - shared)
        self._keep(lease, table, shared, copied, parent.state_slot)
        return lease

    def _keep(self, lease: Lease, table: list[int], shared: int, copied: int | None, state: int | None) -> None:
        if (old := self._sequences.pop(lease.request.request_id, None)) is not None:
            self.blocks.drop(old.blocks)
        lease.held = Sequence(lease, table, shared, copied, self._state_slots, state)
        self._state_slots += 1
        self._sequences[lease.request.request_id] = lease.held

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
