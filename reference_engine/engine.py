"""The reference engine: a decoder, a scheduler and a law, stepped until every request is answered."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from reference_engine.call import Call
from reference_engine.hand_over import HandOver, hand_over, hand_over_tables, holders, written
from reference_engine.laws.base import Law, PoolExhausted
from reference_engine.laws.memory import Room, Slots
from reference_engine.model import Decoder
from reference_engine.pools import KVPool
from reference_engine.request import Completion, Running
from reference_engine.runner import Runner
from reference_engine.scheduler import Prefill, Scheduler
from reference_engine.speculation import Speculation
from vocabulary.engine import TokenRequest
from vocabulary.errors import RequestRefused
from vocabulary.groups import Kind


class ReferenceEngine:
    """Greedy decoding of token requests over one pool; not thread-safe."""

    def __init__(
        self,
        decoder: Decoder,
        law: Law,
        rooms: Sequence[Room],
        *,
        prefill_grid: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        drafts: int = 0,
    ) -> None:
        """`rooms` are the law's, with all sizes known; the decoder's pools were made for them and for `drafts`."""
        self.law, self.runner, self.config = law, Runner(decoder, law, rooms, prefill_grid), decoder.config
        self.drafts, self.speculation = drafts, Speculation(self.runner, drafts) if drafts else None
        self._scheduler = Scheduler(
            law, prefill_grid=prefill_grid, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs
        )
        self._done: dict[str, Completion] = {}
        self._full = next(at for at, room in enumerate(rooms) if room.group.kind is Kind.FULL)
        self.trace_hand_over = False
        """Whether each request's hand-over carries its tables; costs a copy of the hit's keys and values."""

    def generate(self, requests: Sequence[TokenRequest]) -> list[Completion]:
        """Answer all requests, arrived together; completions in their order.

        Raises RequestRefused, before anything is computed, when one of them cannot be served.
        """
        for request in requests:
            self._check(request)
        if len({request.request_id for request in requests}) < len(requests):
            raise RequestRefused("requests sent together share a request_id; give each its own")
        for request in requests:
            self._scheduler.add(request)
        try:
            while self._scheduler.busy:
                self.step()
            return [self._done[request.request_id] for request in requests]
        except PoolExhausted as error:  # with nothing else running
            raise RequestRefused(f"{error}; raise pool_tokens") from None
        finally:
            self._scheduler.abort()
            self._done.clear()

    def reset(self) -> None:
        """Forget every cached prefix."""
        self.law.reset()

    def step(self) -> None:
        """One step: prefills request by request, then the latest token of every decoding request."""
        step = self._scheduler.schedule()
        for prefill in step.prefills:
            self._prefill(prefill)
        if self.speculation is not None:
            for running in step.decodes:
                self._accept(running, self.speculation.step(running))
        elif step.decodes:
            logits = self.runner.decode([running.lease for running in step.decodes])
            for running, token_id in zip(step.decodes, logits.argmax(dim=-1).tolist(), strict=True):
                self._accept(running, [token_id])

    def _prefill(self, prefill: Prefill) -> None:
        running = prefill.running
        self._traced(running)
        calls, rows = self.runner.prefill(running.lease, prefill.start, prefill.end)
        self._scheduler.prefilled(prefill)
        running.hand_over = self._hand_over(running, calls)
        whole = prefill.end == running.request.prompt_len
        logits = rows
        if self.speculation is not None:
            logits = self.speculation.prefilled(running, prefill.start, rows, whole=whole)
        elif self.config.mtp and whole:
            logits = self.runner.logits(rows[-1:])
        if whole:
            running.first_logits, running.first_token_ns = logits[0], time.monotonic_ns()
            self._accept(running, [int(logits[0].argmax())])

    def _accept(self, running: Running, token_ids: Sequence[int]) -> None:
        """The tokens a step chose join the request."""
        last = len(running.output_ids) + len(token_ids) == running.request.max_tokens
        if last:
            self._ending(running)
        self._scheduler.generated(running, token_ids)
        self.runner.settle(running.lease, len(token_ids) - 1)
        if last:
            self._scheduler.finished(running)
            self._done[running.request.request_id] = _completion(running, time.monotonic_ns())
        elif self.speculation is not None:
            self.speculation.propose(running)

    def _hand_over(self, running: Running, calls: Sequence[Call]) -> HandOver:
        """Of the first step; later ones only add what they wrote and stored."""
        lease, rooms = running.lease, self.runner.rooms
        seen = running.hand_over or hand_over(lease, calls[0], self._full)
        if not self.trace_hand_over:
            return seen
        tables = seen.tables or hand_over_tables(lease, calls[0], self.law, self._scheduler.leases, self._full, rooms)
        return replace(seen, tables=replace(tables, groups=written(tables.groups, calls, rooms)))

    def _traced(self, running: Running) -> None:
        """Before the first call: where the hit lies, and what is there."""
        if self.trace_hand_over and running.hit_slots is None:
            running.hit_slots = self.law.slots(running.lease, self._full, 0, running.lease.expectation.position_start)
            running.hit_digest = self._digest(running.hit_slots)

    def _ending(self, running: Running) -> None:
        """Before the blocks go back: who holds them, and whether the hit's content outlived the request untouched."""
        seen = running.hand_over
        if seen is None or seen.tables is None or running.hit_slots is None:
            return
        leases, block_len = self._scheduler.leases, seen.tables.block_len
        tables = replace(
            seen.tables,
            read_only_unchanged=self._digest(running.hit_slots) == running.hit_digest,
            holders_after=holders(self.law, running.lease, leases, self._full, block_len),
        )
        running.hand_over = replace(seen, tables=tables)

    def _digest(self, slots: Slots) -> bytes:
        """Of keys and values in slots of the first full group."""
        self.runner.move()
        pool, digest = self.runner.decoder.pools[self._full], hashlib.sha256()
        assert isinstance(pool, KVPool)
        for tensor in (pool.keys, pool.values):
            held = tensor[:, torch.from_numpy(slots).to(tensor.device)]
            digest.update(held.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return digest.digest()

    def _check(self, request: TokenRequest) -> None:
        name, vocab_size, context_len = request.request_id, self.config.vocab_size, self.config.context_len
        if not request.ids:
            raise RequestRefused(f"request {name}: the prompt is empty; send at least one token")
        if request.max_tokens < 1:
            raise RequestRefused(f"request {name}: max_tokens is {request.max_tokens}; ask for at least 1")
        if wrong := [token_id for token_id in request.ids if not 0 <= token_id < vocab_size]:
            raise RequestRefused(f"request {name}: token ID {wrong[0]} is outside the vocabulary [0, {vocab_size})")
        if request.namespace is not None and not self.law.can_salt:
            raise RequestRefused(f"request {name}: law {self.law.id} has no cache salt; send it without a namespace")
        length = request.prompt_len + request.max_tokens
        if length > context_len:
            raise RequestRefused(f"request {name}: {length} tokens with the output, the context holds {context_len}")
        if not self._scheduler.fits(request):
            raise RequestRefused(
                f"request {name}: {length} tokens with the output, the KV pool holds {self.law.pool_tokens}; "
                f"raise pool_tokens"
            )


def _completion(running: Running, done_ns: int) -> Completion:
    assert running.hand_over is not None and running.first_logits is not None
    return Completion(
        request=running.request,
        expectation=running.lease.expectation,
        hand_over=running.hand_over,
        steps=tuple(running.steps),
        output_ids=tuple(running.output_ids),
        drafted=running.drafted,
        accepted=running.accepted,
        first_logits=running.first_logits,
        first_token_ns=running.first_token_ns,
        done_ns=done_ns,
    )
