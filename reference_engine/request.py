"""One request on its way through the engine, and the record of it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reference_engine.laws.base import Expectation, Lease
from vocabulary.engine import Span, TokenRequest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What lay between "found in the cache" and the first computed token, read off the first forward call."""

    hit_len: int
    """Tokens the law found."""
    position_start: int
    """First entry of the call's positions tensor."""
    first_query_len: int
    """Rows of the call."""
    first_key_len: int
    """Positions the call attended to, its own rows included."""
    keys_gathered: bool
    """True where the slots were scattered and had to be copied together; false: a view of the pool."""


@dataclass(slots=True, eq=False)
class Running:
    """An admitted request."""

    lease: Lease
    steps: list[Span] = field(default_factory=list)
    """Prefill spans so far, one per scheduler step."""
    output_ids: list[int] = field(default_factory=list)
    hand_over: HandOver | None = None
    """Known with the first forward call."""
    first_logits: Tensor | None = None
    first_token_ns: int = 0

    @property
    def request(self) -> TokenRequest:
        """What was asked."""
        return self.lease.request

    @property
    def decoding(self) -> bool:
        """Whether the prompt is complete and the first token known."""
        return bool(self.output_ids)

    @property
    def prefill_start(self) -> int:
        """First prompt position that has no KV yet."""
        return self.steps[-1][1] if self.steps else self.lease.computed_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answered request; times by `time.monotonic_ns`."""

    request: TokenRequest
    expectation: Expectation
    """The law's own account, made when the request was admitted."""
    hand_over: HandOver
    steps: tuple[Span, ...]
    """Prefill spans, one per scheduler step."""
    output_ids: tuple[int, ...]
    first_logits: Tensor  # [vocab], fp32
    first_token_ns: int
    done_ns: int

    @property
    def first_logprob(self) -> float:
        """Natural-log probability of the first generated token."""
        return float(self.first_logits.log_softmax(0)[self.output_ids[0]])
