"""A changed ledger in words: which causes went, which came, and what the candidate does now that the base did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.records import RequestRecord
from harness.wording import count, send_name
from vocabulary.ledger import Cause

WHAT_HAPPENS: dict[Cause, str] = {
    Cause.LAST_TOKEN: "computes the last position for its logits",
    Cause.GRANULE: "rounds down to a block or page",
    Cause.SPEC_DROP: "drops the last matched block",
    Cause.SUCCESSOR: "needs the token behind the block as well",
    Cause.ALIGNMENT: "rounds down to what all layer groups share",
    Cause.NO_STATE: "lacks a recurrent state at the match",
    Cause.WINDOW: "lacks the tokens of a sliding window",
    Cause.CHECKPOINT: "goes back to a lower checkpoint",
    Cause.REPLAY: "replays a fixed tail",
    Cause.MIN_REUSE: "ignores a match below its threshold",
    Cause.SLOT: "misses what another slot holds",
    Cause.NAMESPACE: "keeps the namespaces apart",
    Cause.EVICTED: "loses the match to eviction",
    Cause.IN_FLIGHT: "finds the match unpublished",
    Cause.DISABLED: "turns the lookup off",
    Cause.NO_LAW: "has no law",
    Cause.UNEXPLAINED: "reuses less than its law says",
}
"""After "now" or "no longer"; reused and novel tokens need no explanation."""


@dataclass(frozen=True, slots=True)
class SendChange:
    """One send that was answered in another way."""

    where: str
    """Workload and model, and the engine configuration where there are several."""
    send: str
    prompt_len: int
    lcp_len: int
    base_hit: int | None
    candidate_hit: int | None
    base_start: int | None
    candidate_start: int | None
    base_causes: dict[Cause, int]
    candidate_causes: dict[Cause, int]
    sentence: str
    """What became of the ledger, and what that means."""

    @property
    def less(self) -> int | None:
        """Tokens reused less than before (negative: more); None where a side shows neither start nor hit."""
        if not self.base_causes or not self.candidate_causes:
            return None
        return self.base_causes.get(Cause.REUSED, 0) - self.candidate_causes.get(Cause.REUSED, 0)


def send_change(where: str, base: RequestRecord, candidate: RequestRecord, subject: str) -> SendChange | None:
    """The change of one send, or None where every integer is the same. `subject` is what the comparison is about."""
    same = (base.hit_len, base.position_start, base.ledger) == (
        candidate.hit_len,
        candidate.position_start,
        candidate.ledger,
    )
    if same:
        return None
    return SendChange(
        where=where,
        send=send_name(base),
        prompt_len=base.prompt_len,
        lcp_len=base.lcp_len,
        base_hit=base.hit_len,
        candidate_hit=candidate.hit_len,
        base_start=base.position_start,
        candidate_start=candidate.position_start,
        base_causes=base.by_cause(),
        candidate_causes=candidate.by_cause(),
        sentence=_sentence(base, candidate, subject),
    )


def _sentence(base: RequestRecord, candidate: RequestRecord, subject: str) -> str:
    before, after = base.by_cause(), candidate.by_cause()
    if not before or not after:
        side = "base" if not before else "candidate"
        return f"hit {count(base.hit_len)} became {count(candidate.hit_len)}; the {side} shows no usable hit or start"
    if before == after:
        return (
            f"the same ledger, but hit {count(base.hit_len)} and start {count(base.position_start)} became "
            f"{count(candidate.hit_len)} and {count(candidate.position_start)}"
        )
    return f"{_causes(before)} became {_causes(after)}: {ledger_words(before, after, subject)}"


def ledger_words(before: Mapping[Cause, int], after: Mapping[Cause, int], subject: str) -> str:
    """What changed between two ledgers in a clause, such as "the version now drops the last matched block"."""
    came = [cause for cause in Cause if cause in WHAT_HAPPENS and after.get(cause) and not before.get(cause)]
    went = [cause for cause in Cause if cause in WHAT_HAPPENS and before.get(cause) and not after.get(cause)]
    # The last token is recomputed anyway where something larger is: that it lies inside that now says nothing.
    came, went = _without_last_token(came), _without_last_token(went)
    parts = [f"now {_joined([WHAT_HAPPENS[cause] for cause in came])}"] if came else []
    parts += [f"no longer {WHAT_HAPPENS[cause]}" for cause in went]  # each: "no longer a and b" can be read two ways
    if parts:
        return f"the {subject} {_joined(parts)}"
    moved = {cause: after.get(cause, 0) - before.get(cause, 0) for cause in Cause if cause in WHAT_HAPPENS}
    shifted = [
        f"{abs(by)} {'more' if by > 0 else 'fewer'} tokens to `{cause.value}`" for cause, by in moved.items() if by
    ]
    if shifted:
        return f"the {subject} loses {_joined(shifted)}"
    return f"the {subject} computes other tokens of the same kinds"


def _without_last_token(causes: list[Cause]) -> list[Cause]:
    return [cause for cause in causes if cause is not Cause.LAST_TOKEN]


def _causes(ledger: Mapping[Cause, int]) -> str:
    """Such as "`last_token` 1 and `granule` 15", from the end of the prompt down."""
    parts = [
        f"`{cause.value}` {tokens}" for cause, tokens in reversed(list(ledger.items())) if cause is not Cause.REUSED
    ]
    return _joined(parts) or f"`reused` {ledger.get(Cause.REUSED, 0)}"


def _joined(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
