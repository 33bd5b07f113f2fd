"""The reference engine: a decoder, a scheduler and a law, stepped until every request is answered."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reference_engine.laws.base import Law, Lease, PoolExhausted
from reference_engine.model import Call, Decoder
from reference_engine.request import Completion, HandOver, HandOverTables, Running
from reference_engine.runner import Runner
from reference_engine.scheduler import Scheduler
from vocabulary.engine import TokenRequest
from vocabulary.errors import RequestRefused


class ReferenceEngine:
    """Greedy decoding of token requests over one pool; not thread-safe."""

    def __init__(
        self, decoder: Decoder, law: Law, *, prefill_grid: int, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        self.law, self.runner, self.config = law, Runner(decoder, prefill_grid), decoder.config
        self._scheduler = Scheduler(
            law, prefill_grid=prefill_grid, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs
        )
        self._done: dict[str, Completion] = {}
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
            running = prefill.running
            if self.trace_hand_over and running.hand_over is None:
                running.hit_digest = self._hit_digest(running.lease)
            first_call, logits = self.runner.prefill(running.lease, prefill.start, prefill.end)
            running.hand_over = running.hand_over or self._hand_over(running.lease, first_call)
            self._scheduler.prefilled(prefill)
            if logits is not None:
                self._accept([running], logits)
        if step.decodes:
            logits = self.runner.decode([running.lease for running in step.decodes])
            for running in step.decodes:
                self._scheduler.decoded(running)
            self._accept(step.decodes, logits)

    def _accept(self, batch: Sequence[Running], logits: Tensor) -> None:
        """Append the most likely token of each row of `[len(batch), vocab]`."""
        token_ids = logits.argmax(dim=-1).tolist()
        now = time.monotonic_ns()
        for running, token_id, row in zip(batch, token_ids, logits, strict=True):
            if not running.decoding:
                running.first_logits, running.first_token_ns = row, now
            if self._scheduler.generated(running, token_id):
                self._compare_hit(running)
                self._done[running.request.request_id] = _completion(running, now)

    def _hand_over(self, lease: Lease, first_call: Call) -> HandOver:
        seen = hand_over(lease, first_call)
        if not self.trace_hand_over:
            return seen
        return replace(seen, tables=hand_over_tables(lease, first_call, self._scheduler.leases, self.law.granule))

    def _compare_hit(self, running: Running) -> None:
        """Note whether the hit's content outlived the request untouched."""
        seen = running.hand_over
        if seen is not None and seen.tables is not None:
            unchanged = self._hit_digest(running.lease) == running.hit_digest
            running.hand_over = replace(seen, tables=replace(seen.tables, read_only_unchanged=unchanged))

    def _hit_digest(self, lease: Lease) -> bytes:
        pool, digest = self.runner.decoder.pool, hashlib.sha256()
        slots = torch.from_numpy(lease.slots[: lease.expectation.hit_len].copy()).to(pool.keys.device)
        for tensor in (pool.keys, pool.values):
            digest.update(tensor.index_select(1, slots).contiguous().view(torch.uint8).cpu().numpy().tobytes())
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


def hand_over(lease: Lease, first_call: Call) -> HandOver:
    """Read the hand-over off the first forward call of a request."""
    keys = first_call.extends[0].keys
    return HandOver(
        hit_len=lease.expectation.hit_len,
        position_start=int(first_call.positions[0]),
        first_query_len=len(first_call.positions),
        first_key_len=len(keys) if isinstance(keys, torch.Tensor) else keys.stop - keys.start,
        keys_gathered=isinstance(keys, torch.Tensor),
    )


def hand_over_tables(lease: Lease, first_call: Call, leases: Sequence[Lease], block_len: int) -> HandOverTables:
    """Read the tables off a lease; `leases` are those of all running requests, its own included."""
    table = _block_table(lease, block_len)
    held = [set(_block_table(each, block_len)) for each in leases]
    start, rows = int(first_call.positions[0]), len(first_call.positions)
    return HandOverTables(
        block_len=block_len,
        block_table=tuple(table),
        holders=tuple(sum(block in blocks for blocks in held) for block in table),
        positions=(start, start + rows),
        query_start_loc=(0, rows),
        seq_len=start + rows,
        slot_mapping=tuple(lease.slots[start : start + rows].tolist()),
        read_only_blocks=lease.expectation.hit_len // block_len,
    )


def _block_table(lease: Lease, block_len: int) -> list[int]:
    blocks: list[int] = (lease.slots[: lease.length : block_len] // block_len).tolist()
    return blocks


def _completion(running: Running, done_ns: int) -> Completion:
    assert running.hand_over is not None and running.first_logits is not None
    return Completion(
        request=running.request,
        expectation=running.lease.expectation,
        hand_over=running.hand_over,
        steps=tuple(running.steps),
        output_ids=tuple(running.output_ids),
        first_logits=running.first_logits,
        first_token_ns=running.first_token_ns,
        done_ns=done_ns,
    )
