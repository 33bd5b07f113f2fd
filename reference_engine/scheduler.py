"""Which tokens the next step computes: continuous batching, chunked prefill, first come first served.

Knows requests and the law that manages their slots; knows nothing of tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reference_engine.laws.base import Law, Lease, PoolExhausted
from reference_engine.request import Running
from vocabulary.engine import TokenRequest


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompt positions `[start, end)` of one request."""

    running: Running
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one step."""

    prefills: tuple[Prefill, ...]
    decodes: tuple[Running, ...]
    """Requests that compute their latest token."""


class Scheduler:
    """Requests from arrival to release.

    A step computes at most `max_num_batched_tokens` tokens: one per decoding request, the rest prompt tokens. What it
    takes of a prompt ends on the grid or at the prompt's end, so the budget never moves the borders of the calls. The
    budget covers `max_num_seqs` decodes and one grid cell, so the oldest prefill always advances.

    A request is admitted when the pool could hold it and all running ones at their full length, sharing nothing: a
    running request then never lacks a slot, and nothing is ever preempted.

    A law whose `chunks_bind` decides itself where prefill steps end; its requests run one after the other, because how
    several share a step is not part of such a law.
    """

    def __init__(self, law: Law, *, prefill_grid: int, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        if max_num_batched_tokens < prefill_grid + max_num_seqs:
            raise ValueError(f"token budget {max_num_batched_tokens} < grid {prefill_grid} + {max_num_seqs} decodes")
        self._law, self._pool_tokens, self._grid = law, law.pool_tokens, prefill_grid
        self._budget, self._max_num_seqs = max_num_batched_tokens, 1 if law.chunks_bind else max_num_seqs
        self._waiting: deque[TokenRequest] = deque()
        self._running: list[Running] = []

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._waiting or self._running)

    @property
    def leases(self) -> list[Lease]:
        """What the running requests hold."""
        return [running.lease for running in self._running]

    def add(self, request: TokenRequest) -> None:
        """Queue a request that `fits`."""
        self._waiting.append(request)

    def fits(self, request: TokenRequest, *, beside: int = 0) -> bool:
        """Whether the request could run at full length in a pool of which others may take `beside` slots."""
        return self._pool_tokens is None or beside + self._footprint(request) <= self._pool_tokens

    def schedule(self) -> Step:
        """Choose the next step's work, admitting what fits; never empty while `busy`."""
        decodes = tuple(running for running in self._running if running.decoding)
        budget = self._budget - len(decodes)
        prefills: list[Prefill] = []
        for running in self._prefilling():
            end = self._chunk_end(running, budget)
            if end == running.prefill_start:
                break
            prefills.append(Prefill(running, running.prefill_start, end))
            budget -= end - running.prefill_start
        return Step(tuple(prefills), decodes)

    def prefilled(self, prefill: Prefill) -> None:
        """The KV of a prefill is in the pool."""
        prefill.running.steps.append((prefill.start, prefill.end))
        self._law.computed(prefill.running.lease, prefill.end)

    def generated(self, running: Running, token_ids: Sequence[int]) -> None:
        """A step computed the latest token and chose the next ones; they join the request."""
        running.output_ids += token_ids
        self._law.accepted(running.lease, token_ids)

    def finished(self, running: Running) -> None:
        """The request has all it asked for."""
        self._running.remove(running)
        self._law.release(running.lease)

    def abort(self) -> None:
        """Drop all requests and give back what they hold."""
        self._waiting.clear()
        while self._running:
            self._law.release(self._running.pop().lease)

    def _prefilling(self) -> Iterator[Running]:
        """Unfinished prefills, oldest first; admits the next waiting request only when it is asked for one more."""
        yield from [running for running in self._running if not running.decoding]
        while self._waiting and len(self._running) < self._max_num_seqs:
            if (lease := self._admit(self._waiting[0])) is None:
                return
            self._waiting.popleft()
            self._running.append(Running(lease))
            yield self._running[-1]

    def _admit(self, request: TokenRequest) -> Lease | None:
        held = sum(self._footprint(running.request) for running in self._running)
        if not self.fits(request, beside=held):
            return None
        try:
            return self._law.admit(request)
        except PoolExhausted:
            if not self._running:
                raise
            return None

    def _chunk_end(self, running: Running, budget: int) -> int:
        start, prompt_len = running.prefill_start, running.request.prompt_len
        if self._law.chunks_bind:
            return self._law.chunk_end(running.lease)
        if start + budget >= prompt_len:
            return prompt_len
        return max(start, (start + budget) // self._grid * self._grid)

    def _footprint(self, request: TokenRequest) -> int:
        """Slots of a request at full length, in whole granules."""
        return -(-(request.prompt_len + request.max_tokens) // self._law.granule) * self._law.granule
