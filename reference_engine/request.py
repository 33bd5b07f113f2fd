"""One request on its way through the engine, and the record of it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reference_engine.laws.base import Expectation, Lease
from vocabulary.engine import Span, TokenRequest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverTables:
    """The tables behind a hand-over, as the first forward call used them; only made where they are asked for."""

    block_len: int
    """Tokens per block: the law's granule."""
    block_table: tuple[int, ...]
    """Pool block of each block of the prompt."""
    holders: tuple[int, ...]
    """Per block of the table, running requests that have it in theirs: its reference count."""
    positions: Span
    """Positions of the call's rows."""
    query_start_loc: tuple[int, ...]
    """Row borders of the requests in the call."""
    seq_len: int
    """Positions the last row attends to."""
    slot_mapping: tuple[int, ...]
    """Pool slot that each row writes."""
    read_only_blocks: int
    """Leading blocks that lie wholly in the hit."""
    read_only_unchanged: bool = False
    """Whether keys and values of all hit positions were the same bits before the first call and after the last."""


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
    tables: HandOverTables | None = None
    """None unless the engine traces hand-overs."""


@dataclass(slots=True, eq=False)
class Running:
    """An admitted request."""

    lease: Lease
    steps: list[Span] = field(default_factory=list)
    """Prefill spans so far, one per scheduler step."""
    output_ids: list[int] = field(default_factory=list)
    hand_over: HandOver | None = None
    """Known with the first forward call."""
    hit_digest: bytes = b""
    """Of the pool's content at the hit positions before the first call; empty unless hand-overs are traced."""
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
