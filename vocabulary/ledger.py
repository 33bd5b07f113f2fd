"""The ledger: a partition of a prompt's positions `[0, L)` by the cause of their recomputation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Cause(StrEnum):
    """Why an interval of the prompt was reused or recomputed; the docstring of each is its definition."""

    REUSED = "reused"
    """Taken from the cache."""
    NOVEL = "novel"
    """No earlier request in this namespace had these tokens."""
    LAST_TOKEN = "last_token"
    """The cap: the last position must be computed to get logits."""
    GRANULE = "granule"
    """Rounding down to the block or page."""
    SPEC_DROP = "spec_drop"
    """EAGLE or MTP gives back the last matched unit."""
    SUCCESSOR = "successor"
    """The block's key also covers the next token, and that differs."""
    ALIGNMENT = "alignment"
    """Layer groups with different blocks must agree on a common multiple."""
    NO_STATE = "no_state"
    """No recurrent state at, or near enough below, the match."""
    WINDOW = "window"
    """A sliding-window layer lacks the tokens before the boundary."""
    CHECKPOINT = "checkpoint"
    """The nearest context checkpoint lies lower (llama.cpp)."""
    REPLAY = "replay"
    """Bounded replay recomputes a fixed tail whatever the hit."""
    MIN_REUSE = "min_reuse"
    """Shorter than the engine's threshold."""
    SLOT = "slot"
    """Another slot or replica holds it."""
    NAMESPACE = "namespace"
    """Salt, adapter or multimodal content differs."""
    EVICTED = "evicted"
    """Was resident and has been dropped or overwritten."""
    IN_FLIGHT = "in_flight"
    """The owner has not published it yet."""
    DISABLED = "disabled"
    """A flag or request feature turns the lookup off."""
    NO_LAW = "no_law"
    """No law covers this engine as configured; nothing is claimed about these tokens."""
    UNEXPLAINED = "unexplained"
    """None of the others: the regression signal."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Positions `[start, end)`, never empty, that share one cause; the ledger of a record is a list of them."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "use_attribute_docstrings": True}

    start: int
    """First position."""
    end: int
    """One past the last position."""
    cause: Cause
    """Why these positions were reused or computed."""

    @property
    def tokens(self) -> int:
        """Length in tokens."""
        return self.end - self.start


def check_partition(prompt_len: int, intervals: Iterable[Interval]) -> None:
    """ValueError unless the intervals, in order, cover `[0, prompt_len)` exactly."""
    position = 0
    for interval in intervals:
        if interval.start != position or interval.end <= interval.start:
            raise ValueError(f"ledger is not a partition: {interval} follows position {position}")
        position = interval.end
    if position != prompt_len:
        raise ValueError(f"ledger covers {position} of {prompt_len} tokens")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Intervals in order that cover `[0, prompt_len)` exactly; construction rejects anything else."""

    prompt_len: int
    intervals: tuple[Interval, ...]

    def __post_init__(self) -> None:
        check_partition(self.prompt_len, self.intervals)

    @classmethod
    def waterfall(cls, prompt_len: int, ceilings: Iterable[tuple[Cause, int]]) -> Ledger:
        """Build a ledger from the ceilings a rule puts on the reuse, in the order the rule applies them.

        Starting at `prompt_len`, each `(cause, ceiling)` below what is left books the difference to
        its cause; what remains under the last ceiling is `reused`.
        """
        left = prompt_len
        made: list[Interval] = []
        for cause, ceiling in ceilings:
            if ceiling < left and left:
                floor, end = max(ceiling, 0), left
                if made and made[-1].cause is cause:
                    end = made.pop().end
                made.append(Interval(floor, end, cause))
                left = floor
        if left:
            made.append(Interval(0, left, Cause.REUSED))
        made.reverse()
        return cls(prompt_len, tuple(made))

    @property
    def reused(self) -> int:
        """Tokens taken from the cache."""
        return self.tokens(Cause.REUSED)

    def tokens(self, cause: Cause) -> int:
        """Tokens booked to one cause."""
        return sum(i.tokens for i in self.intervals if i.cause is cause)

    def by_cause(self) -> dict[Cause, int]:
        """Tokens per cause, in the order of first appearance; causes without tokens are absent."""
        totals: dict[Cause, int] = {}
        for interval in self.intervals:
            totals[interval.cause] = totals.get(interval.cause, 0) + interval.tokens
        return totals

    def observed(self, position_start: int) -> Ledger:
        """This expectation with the observed start of computation in place of the predicted one.

        Observed lower than predicted: the difference becomes `unexplained`. Observed higher: the
        causes above it keep what lies beyond it (the caller reports the surplus as a finding).
        """
        if not 0 <= position_start <= self.prompt_len:
            raise ValueError(f"position start {position_start} outside [0, {self.prompt_len}]")
        parts = [Interval(0, position_start, Cause.REUSED)] if position_start else []
        for interval in self.intervals:
            start = max(interval.start, position_start)
            if start < interval.end:
                cause = Cause.UNEXPLAINED if interval.cause is Cause.REUSED else interval.cause
                parts.append(Interval(start, interval.end, cause))
        return Ledger(self.prompt_len, tuple(parts))
