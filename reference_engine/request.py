"""One request on its way through the engine, and the record of it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reference_engine.hand_over import HandOver
from reference_engine.laws.base import Expectation, Lease
from reference_engine.laws.memory import Slots
from vocabulary.engine import Span, TokenRequest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, eq=False)
class Running:
    """An admitted request."""

    lease: Lease
    steps: list[Span] = field(default_factory=list)
    """Prefill spans so far, one per scheduler step."""
    output_ids: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    """Guesses of the next tokens, to be verified by the next step."""
    drafted: int = 0
    """Tokens guessed so far."""
    accepted: int = 0
    """Guesses found right."""
    pending: tuple[int, Tensor] | None = None
    """Position of the first row, and hidden states of the rows, that the drafting head has not seen."""
    hand_over: HandOver | None = None
    """Known with the first forward call."""
    hit_slots: Slots | None = None
    """Of the hit in the first full group; None unless hand-overs are traced."""
    hit_digest: bytes = b""
    """Of what these slots held before the first call."""
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
    drafted: int
    """Tokens guessed by the drafting head."""
    accepted: int
    """Guesses found right."""
    first_logits: Tensor  # [vocab], fp32
    first_token_ns: int
    done_ns: int

    @property
    def first_logprob(self) -> float:
        """Natural-log probability of the first generated token."""
        return float(self.first_logits.log_softmax(0)[self.output_ids[0]])
