"""The interface of a law, both as a predictor and as the cache manager of the reference engine.

As a predictor (no pool limit unless asked for):

    expectation = law.send(request)            # what the engine will answer
    law.finish(request, reply.output_ids)      # what it will have afterwards
    law.reset()

As a cache manager, one request goes through

    lease = law.admit(request)       # look up, pin what is hit, reserve slots for the whole prompt
    end = law.chunk_end(lease)       # how far the engine computes in one step: where states may be kept
    law.computed(lease, end)         # positions [0, end) now have KV: publish what the rule publishes
    law.append(lease, token_id)      # a generated token: reserve its slot
    law.release(lease)               # done: unpin, keep what the rule keeps

`send` and `finish` are these four in order, so a prediction and the reference engine cannot disagree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_engine.laws.memory import Moves, Room, Slots
from reference_engine.laws.parts.chained import Chained, ChainedRequest, Tokens
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.ledger import Cause, Ledger

__all__ = ["Expectation", "Ids", "Law", "Lease", "PoolExhausted", "Slots"]

Ids = npt.NDArray[np.int32]


class PoolExhausted(LawDoesNotCover):
    """No free or evictable memory is left for this request; it has to wait for others to finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a law says one request will get."""

    hit_len: int
    """Tokens the engine will report as taken from cache."""
    position_start: int
    """First position it will compute."""
    ledger: Ledger
    per_group: Mapping[str, int]
    """Longest reuse each layer group alone would allow, in tokens."""
    junction: int
    """Boundary that only the next sibling can use; equal to hit_len where there is none."""
    backed_len: int | None = None
    """Tokens below which every layer group really holds what the hit claims; None: all of the hit.

    Less than the hit: the engine computes on memory that holds something else (finding `unbacked`).
    """
    approximate_len: int = 0
    """Tokens of the hit that were computed behind another prefix and moved (llama.cpp chunk shifting)."""

    @property
    def binding(self) -> Cause | None:
        """The cause of the first recomputed token: the constraint whose removal lengthens the hit."""
        return next((i.cause for i in self.ledger.intervals if i.cause is not Cause.REUSED), None)


Serve = Callable[[TokenRequest, Sequence[int]], Expectation]
"""Takes a request and what it generates; raises what `Law.send` and `Law.finish` raise."""


class Lease:
    """One request's hold on the cache: its tokens so far, and what the law pins for it."""

    __slots__ = ("computed_len", "expectation", "held", "ids", "length", "request", "valid_from")

    def __init__(self, request: TokenRequest, expectation: Expectation, ids: Tokens | None = None) -> None:
        """`ids`: the prompt in its form, where the law has it already."""
        self.request, self.expectation = request, expectation
        self.length = request.prompt_len
        """Tokens so far: prompt and generated."""
        self.ids: Any
        """Prompt and output in the form of the prompt: an array of `prompt_len + max_tokens`, or a chain."""
        if isinstance(request, ChainedRequest):
            self.ids = request.chain
        else:
            self.ids = np.empty(self.length + request.max_tokens, np.int32)
            self.ids[: self.length] = request.array if ids is None else ids
        self.computed_len = expectation.position_start
        """Positions that have KV."""
        self.valid_from = 0
        """Positions below it are invisible to sliding windows (DeepInfer's external replay); 0: all are there."""
        self.held: object = None
        """The law's own handle on what the lease pins."""

    def push(self, token_id: int) -> None:
        """A generated token joins; the output of a chain is known by its request."""
        if not isinstance(self.ids, Chained):
            self.ids[self.length] = token_id
        self.length += 1


class Law(ABC):
    """One system's lookup rule for one version and configuration."""

    id: str
    """Such as "vllm@0.32"."""
    granule: int
    """Smallest reusable step in tokens."""
    caps_last_token: bool = True
    can_salt: bool = True
    """Whether `TokenRequest.namespace` separates caches; where not, the rule has no such thing."""
    can_media: bool = False
    """Whether items such as images in a prompt (`TokenRequest.media`) are covered."""
    reset_forgets_all: bool = True
    """False where something outlives a reset, such as the order in which slots were used."""
    pool_tokens: int | None
    """Tokens of the pool; None: unbounded."""
    rooms: tuple[Room, ...] = ()
    """Memory per layer group that an engine behind this law needs, in the order of the option `groups`; none: the law
    can only predict."""
    drafts: int = 0
    """Tokens that a step may propose beyond the next one, where the rule depends on it."""
    chunks_bind: bool = False
    """Whether what is kept depends on where prefill steps end, so that an engine has to end them at `chunk_end`."""

    reads_chains: bool = False
    """Whether `parts.chained.ChainedRequest`s may be sent: prompts known by the blocks of a trace."""

    @abstractmethod
    def admit(self, request: TokenRequest) -> Lease:
        """Look up the prompt and reserve slots for all of it; PoolExhausted (and no effect) when there is no room."""

    def chunk_end(self, lease: Lease) -> int:
        """End of the prefill step that starts at `lease.computed_len`; the prompt's end where chunks decide nothing."""
        return lease.request.prompt_len

    @abstractmethod
    def computed(self, lease: Lease, end: int) -> None:
        """Positions `[0, end)` of the lease have KV now."""

    @abstractmethod
    def append(self, lease: Lease, token_id: int) -> None:
        """A generated token joins the lease and gets a slot; its KV is not computed yet."""

    def accepted(self, lease: Lease, token_ids: Sequence[int]) -> None:
        """A step computed the latest token and chose these: drafts found right and one behind them, without KV yet."""
        for token_id in token_ids:
            self.computed(lease, lease.length)
            self.append(lease, token_id)

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """The request is over: unpin, and keep for reuse what the rule keeps."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything; only allowed while no lease is held."""

    @abstractmethod
    def check_integrity(self) -> None:
        """AssertionError when the pool's books do not add up: every slot is free, cached or owned, exactly once."""

    def slots(self, lease: Lease, group: int, start: int, end: int) -> Slots:
        """Places of positions `[start, end)` in an attention group's pool; those below the hit are only read."""
        raise LawDoesNotCover(f"{self.id}: these options can only be predicted; no engine follows them")

    def state(self, lease: Lease, group: int, position: int) -> int:
        """Place of the state behind `position` tokens, `position > 0`, in a recurrent group's pool."""
        raise LawDoesNotCover(f"{self.id}: these options can only be predicted; no engine follows them")

    def stores(self, lease: Lease, group: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """States that a call over `[start, end)` leaves, as (position, place), ascending; the last one is at `end`."""
        return ((end, self.state(lease, group, end)),)

    def send(self, request: TokenRequest) -> Expectation:
        """Predict the answer to `request` and take its prompt as computed; `finish` must follow.

        A request that the engine could not take to its first token (LawDoesNotCover) leaves nothing behind.
        """
        if request.media and not self.can_media:
            raise LawDoesNotCover(f"{self.id}: images and other items in a prompt are not covered")
        lease = self.admit(request)
        length = lease.length
        try:
            while lease.computed_len < length:
                self.computed(lease, self.chunk_end(lease))
        except LawDoesNotCover:
            self.release(lease)
            raise
        self._sent[request.request_id] = lease
        return lease.expectation

    def finish(self, request: TokenRequest, output_ids: Sequence[int]) -> None:
        """Tell the law what the engine generated; the last token has no KV, as in every engine covered."""
        lease = self._sent.pop(request.request_id)
        try:
            for token_id in output_ids:
                self.append(lease, token_id)
            if output_ids:
                self.computed(lease, lease.length - 1)
        finally:
            self.release(lease)

    def serve(self, request: TokenRequest, output_ids: Sequence[int]) -> Expectation:
        """`send` and `finish` in one."""
        expectation = self.send(request)
        self.finish(request, output_ids)
        return expectation

    def replay(self) -> Serve:
        """As `serve`, for the requests of a trace by a law that nothing else uses; what it returns may be faster.

        Requests are known by blocks where the law `reads_chains`.
        """
        return self.serve

    def __init__(self) -> None:
        self._sent: dict[str, Lease] = {}
        self.moves = Moves()
        """What an engine has to copy, decided by any call above."""
