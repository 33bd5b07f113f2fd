"""Hit length is not savings: what lies between the tokens an engine reports as hit and the time a request saves.

    hit            what the engine reports
    computed       what it computes all the same: everything from the position start, whatever the hit says
    lost           of the common prefix, the tokens recomputed, by cause: granule, drop, state or window, replay
    prefill share  how much of the cold request is prefill at all: cold TTFT over cold total
    TTFT saved     1 - median(warm TTFT) / median(cold TTFT); the median of pairwise ratios is another number
    request saved  the same of the whole request, with its decoding

Cold and warm requests are those of one engine, model and workload with prompts of one length: hit 0 against one
hit and common prefix. The first cold request after a start is slow for other reasons, and is left out where there is
a second.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.records import RequestRecord, Role
from harness.wording import percent
from vocabulary.engine import Fidelity
from vocabulary.ledger import Cause

UNCHANGED = 0.05
"""Medians closer than this share are called unchanged: single runs of an engine differ by as much."""
NOT_LOST = frozenset({Cause.REUSED, Cause.NOVEL, Cause.LAST_TOKEN})
"""Causes that no engine could avoid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Cold against warm for one engine configuration, workload and prompt length."""

    engine_label: str
    engine: str
    model: str
    workload: str
    prompt_len: int
    """Tokens."""
    lcp_len: int
    """Longest common prefix of the warm prompts, in tokens."""
    hit_len: int
    """Reported by the engine for the warm requests."""
    tail_len: int
    """Computed all the same, in tokens."""
    lost: tuple[tuple[Cause, int], ...]
    """Avoidable tokens of the tail by cause."""
    cold: int
    """Cold requests behind the medians."""
    warm: int
    """Warm requests behind the medians."""
    cold_ttft_ns: float
    warm_ttft_ns: float
    cold_total_ns: float
    warm_total_ns: float

    @property
    def hit_share(self) -> float:
        """Hit over prompt."""
        return self.hit_len / self.prompt_len

    @property
    def prefill_share(self) -> float:
        """Prefill's share of the cold request."""
        return self.cold_ttft_ns / self.cold_total_ns

    @property
    def ttft_saved(self) -> float:
        """Share of the cold TTFT that the hit saves; negative where the warm request was slower."""
        return 1 - self.warm_ttft_ns / self.cold_ttft_ns

    @property
    def request_saved(self) -> float:
        """Share of the whole cold request that the hit saves."""
        return 1 - self.warm_total_ns / self.cold_total_ns

    @property
    def sentence(self) -> str:
        """Hit and saving in one line, such as "98.7 % hit, TTFT unchanged (37.3 -> 37.4 ms)"."""
        times = f"{self.cold_ttft_ns / 1e6:.1f} -> {self.warm_ttft_ns / 1e6:.1f} ms"
        if abs(self.ttft_saved) < UNCHANGED:
            change = f"TTFT unchanged ({times})"
        else:
            factor = self.cold_ttft_ns / self.warm_ttft_ns
            change = (
                f"TTFT {factor:.2f}x faster ({times})" if factor > 1 else f"TTFT {1 / factor:.2f}x SLOWER ({times})"
            )
        return f"{percent(self.hit_share)} hit, {change}"


def savings(requests: Iterable[RequestRecord], *, warmed_up: bool = False) -> list[Savings]:
    """One row per engine configuration, workload, prompt length, hit and common prefix that was seen cold and warm.

    The first cold request of a length, which an engine may need to get going, does not count unless `warmed_up`.
    """
    groups: dict[tuple[str, str, str, int], list[RequestRecord]] = {}
    for request in requests:
        timed = request.ttft_ns is not None and request.fidelity is Fidelity.SERVED
        if timed and request.role is not Role.SENTINEL and request.tail_len is not None:
            key = (request.engine_label, request.model, request.workload, request.prompt_len)
            groups.setdefault(key, []).append(request)
    rows = []
    for group in groups.values():
        cold = [r for r in group if r.hit_len == 0 and r.tail_len == r.prompt_len]
        warm: dict[tuple[int, int], list[RequestRecord]] = {}
        for request in group:
            if request.hit_len and request.role is Role.PROBE:
                warm.setdefault((request.hit_len, request.lcp_len), []).append(request)
        settled = cold if warmed_up else cold[1:] or cold
        rows += [_row(settled, requests) for _, requests in sorted(warm.items()) if cold]
    return rows


def _row(cold: Sequence[RequestRecord], warm: Sequence[RequestRecord]) -> Savings:
    first = warm[0]
    lost = {cause: tokens for cause, tokens in first.by_cause().items() if cause not in NOT_LOST}
    return Savings(
        engine_label=first.engine_label,
        engine=first.engine,
        model=first.model,
        workload=first.workload,
        prompt_len=first.prompt_len,
        lcp_len=first.lcp_len,
        hit_len=first.hit_len or 0,
        tail_len=first.tail_len or 0,
        lost=tuple(lost.items()),
        cold=len(cold),
        warm=len(warm),
        cold_ttft_ns=statistics.median(r.ttft_ns for r in cold if r.ttft_ns is not None),
        warm_ttft_ns=statistics.median(r.ttft_ns for r in warm if r.ttft_ns is not None),
        cold_total_ns=statistics.median(r.total_ns for r in cold),
        warm_total_ns=statistics.median(r.total_ns for r in warm),
    )
