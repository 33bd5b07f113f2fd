"""Latency of a run of `pairs`: which pairs count, and what they say.

A pair is a prompt timed cold and timed warm in one cell. It counts only if the cold request hit nothing, the warm one
hit what the law says (any hit where no law covers the engine), neither has a finding, and both generated the same
tokens.

    speed-up       median(cold TTFT) / median(warm TTFT), not the median of the pairs' ratios
    interval       95 % bootstrap interval of the median of the paired log ratios (harness.statistics)
    first-to-last  first to last generated token
    TPOT           first-to-last / (generated tokens - 1)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.records import RequestRecord, Role
from harness.statistics import PairedRatio, paired_ratio
from workloads.families.pairs import COLD, WARM, WARM_UP

P99_LEAST = 100
"""Fewer samples have no 99th percentile worth a number."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, timed cold and timed warm."""

    cold: RequestRecord
    warm: RequestRecord

    @property
    def rejected(self) -> str | None:
        """Why the pair does not count; None: it does."""
        cold, warm = self.cold, self.warm
        reasons = (
            (cold.hit_len != 0, f"the cold request hit {cold.hit_len}"),
            (not warm.hit_len, "the warm request hit nothing"),
            (
                warm.hit_len != warm.expected_hit_len is not None,
                f"the warm request hit {warm.hit_len}, the law says {warm.expected_hit_len}",
            ),
            (cold.findings or warm.findings, "one of its requests has a finding"),
            (cold.answer != warm.answer, "cold and warm generated different tokens"),
            (None in (cold.ttft_ns, warm.ttft_ns), "one of its requests has no time to first token"),
        )
        return next((why for applies, why in reasons if applies), None)


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity over the counted pairs, in milliseconds."""

    cold_ms: float
    """Median."""
    warm_ms: float
    """Median."""
    cold_p99_ms: float | None
    """None: too few samples."""
    warm_p99_ms: float | None
    """None: too few samples."""

    @property
    def speedup(self) -> float:
        """Ratio of the medians."""
        return self.cold_ms / self.warm_ms if self.warm_ms else float("inf")


@dataclass(frozen=True, slots=True)
class Latency:
    """One engine configuration at one prompt length."""

    engine_label: str
    engine: str
    model: str
    prompt_len: int
    hit_len: int
    """Of the warm requests."""
    starts: int
    """Process starts the pairs come from."""
    pairs: int
    """Pairs that count."""
    rejected: tuple[str, ...]
    """Why the others do not."""
    warm_faster: int
    """Pairs whose warm TTFT is the shorter one."""
    ttft: Figure
    first_to_last: Figure | None
    """None where one token was generated."""
    tpot: Figure | None
    total: Figure
    ttft_ratio: PairedRatio
    """Warm over cold."""


def pairs_of(requests: Iterable[RequestRecord]) -> list[Pair]:
    """All timed pairs of a run, warm-ups left out."""
    halves: dict[tuple[str, str], dict[str, RequestRecord]] = {}
    for request in requests:
        name, _, kind = request.label.rpartition(" ")
        if request.role is Role.PROBE and kind in (COLD, WARM) and WARM_UP not in name:
            halves.setdefault((request.cell, name), {})[kind] = request
    return [Pair(each[COLD], each[WARM]) for each in halves.values() if len(each) == 2]


def latencies(requests: Iterable[RequestRecord]) -> tuple[list[Latency], list[str]]:
    """A row per engine configuration, model and prompt length, and a sentence for each without any counted pair."""
    groups: dict[tuple[str, str, int], list[Pair]] = {}
    for pair in pairs_of(requests):
        key = (pair.cold.engine_label, pair.cold.model, pair.cold.prompt_len)
        groups.setdefault(key, []).append(pair)
    rows, gaps = [], []
    for (label, model, length), pairs in groups.items():
        counted = [pair for pair in pairs if pair.rejected is None]
        if counted:
            rows.append(_row(counted, [pair.rejected for pair in pairs if pair.rejected is not None]))
        else:
            gaps.append(f"{label} on {model}, {length} tokens: no pair counts ({pairs[0].rejected})")
    return rows, gaps


def both(figure: Figure | None) -> str:
    """Such as "37.3 > 22.1", with the p99s where there are enough samples."""
    if figure is None:
        return "-"
    p99 = ""
    if figure.cold_p99_ms is not None and figure.warm_p99_ms is not None:
        p99 = f" (p99 {figure.cold_p99_ms:.1f} > {figure.warm_p99_ms:.1f})"
    return f"{figure.cold_ms:.1f} > {figure.warm_ms:.1f}{p99}"


def interval(row: Latency) -> str:
    """The speed-up's 95 % interval; "-" for a single pair, which has none."""
    ratio = row.ttft_ratio
    return f"[{1 / ratio.high:.2f}, {1 / ratio.low:.2f}]" if row.pairs > 1 else "-"


def _row(pairs: Sequence[Pair], rejected: Sequence[str]) -> Latency:
    first = pairs[0]
    ttft = [(_ms(pair.cold.ttft_ns), _ms(pair.warm.ttft_ns)) for pair in pairs]
    total = [(_ms(pair.cold.total_ns), _ms(pair.warm.total_ns)) for pair in pairs]
    rest = [(whole[0] - begun[0], whole[1] - begun[1]) for whole, begun in zip(total, ttft, strict=True)]
    gaps = min(len(r.output_ids) for pair in pairs for r in (pair.cold, pair.warm)) - 1
    return Latency(
        engine_label=first.cold.engine_label,
        engine=first.cold.engine,
        model=first.cold.model,
        prompt_len=first.cold.prompt_len,
        hit_len=first.warm.hit_len or 0,
        starts=len({pair.cold.cell for pair in pairs}),
        pairs=len(pairs),
        rejected=tuple(rejected),
        warm_faster=sum(warm < cold for cold, warm in ttft),
        ttft=_figure(ttft),
        first_to_last=_figure(rest) if gaps > 0 else None,
        tpot=_figure([(cold / gaps, warm / gaps) for cold, warm in rest]) if gaps > 0 else None,
        total=_figure(total),
        ttft_ratio=paired_ratio([cold for cold, _ in ttft], [warm for _, warm in ttft], starts=_starts(pairs)),
    )


def _starts(pairs: Sequence[Pair]) -> list[int]:
    """The number of each pair's process start."""
    cells = list(dict.fromkeys(pair.cold.cell for pair in pairs))
    return [cells.index(pair.cold.cell) for pair in pairs]


def _figure(values: Sequence[tuple[float, float]]) -> Figure:
    cold, warm = ([pair[side] for pair in values] for side in (0, 1))
    return Figure(statistics.median(cold), statistics.median(warm), _p99(cold), _p99(warm))


def _p99(values: Sequence[float]) -> float | None:
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) >= P99_LEAST else None


def _ms(value_ns: int | None) -> float:
    assert value_ns is not None
    return value_ns / 1e6
