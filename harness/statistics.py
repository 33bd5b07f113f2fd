"""Paired latencies: how much slower, how surely, and what that means against a threshold.

Each pair is one prompt timed under both configurations. The estimate is the median of the logarithms of the pairs'
ratios, so that one hiccup moves little and twice as fast weighs as much as twice as slow. The interval is the
percentile bootstrap of that median: 10,000 resamples of the pairs with a fixed seed, so the same pairs always give the
same interval. docs/comparing.md has the false alarms and the power that follow, from `benchmarks/calibration.py`.

ASSUMPTION: pairs are independent within a process start. What all pairs of a start share (memory layout, thread
placement) is in the interval from three starts on: it then also holds the t interval of the starts' medians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
SEED = 0
CONFIDENCE = 0.95
MIN_PAIRS = 10
"""Fewer pairs give no verdict: six of six slower happens by chance in one of 64 comparisons."""
MIN_STARTS = 3
"""Process starts a side from which on the interval knows how far starts lie apart; two say next to nothing."""
CHUNK = 1_000
"""Resamples drawn at once: 5,000 pairs are 40 MB then."""
SIGMA_OF_QUARTILES = 1.349
"""Distance of a normal distribution's quartiles in standard deviations."""


class Verdict(StrEnum):
    """What a comparison amounts to."""

    PASS = "pass"
    """Nothing got worse than allowed."""
    FAIL = "fail"
    """Something did."""
    INCONCLUSIVE = "inconclusive"
    """The data do not decide it."""


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Candidate over base, from pairs; 1.05 is 5 % slower."""

    pairs: int
    median: float
    low: float
    """Lower end of the 95 % interval of the median."""
    high: float
    """Upper end."""
    spread: float
    """How far single pairs lie apart: a robust standard deviation of the ratios, as a share."""
    starts: int = 1
    """Process starts that the pairs come from; from MIN_STARTS on, the interval holds what they differ by."""

    @property
    def change(self) -> str:
        """Such as "+3.1 % [+1.0 %, +5.4 %]"."""
        return f"{_signed(self.median)} [{_signed(self.low)}, {_signed(self.high)}]"


def paired_ratio(
    base: Sequence[float] | npt.NDArray[np.float64],
    candidate: Sequence[float] | npt.NDArray[np.float64],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    confidence: float = CONFIDENCE,
    starts: Sequence[int] = (),
) -> PairedRatio:
    """Candidate over base for pairs of times `(n,)`, in any one unit; `starts` numbers each pair's process start.

    Raises ValueError for no pairs, unequal lengths, or a time that is not positive and finite.
    """
    before, after = np.asarray(base, np.float64), np.asarray(candidate, np.float64)
    if before.shape != after.shape or before.ndim != 1 or not before.size:
        raise ValueError(f"pairs wanted, got {before.shape} and {after.shape} times")
    if not (np.isfinite(before).all() and np.isfinite(after).all() and (before > 0).all() and (after > 0).all()):
        raise ValueError("times must be positive and finite")
    unsorted = np.log(after / before)
    logs = np.sort(unsorted)
    lower, upper, times = _middle_ranks(logs.size, resamples, seed)
    medians = (logs[lower] + logs[upper]) / 2
    order = np.argsort(medians, kind="stable")
    tail = (1 - confidence) / 2
    low, high = (_quantile(medians[order], times[order], share) for share in (tail, 1 - tail))
    first, third = np.quantile(logs, [0.25, 0.75])
    numbers = np.asarray(starts or [0] * logs.size)
    of_starts = np.array([np.median(unsorted[numbers == number]) for number in np.unique(numbers)])
    if of_starts.size >= MIN_STARTS:
        error = float(of_starts.std(ddof=1)) / math.sqrt(of_starts.size)
        reach = t_quantile(1 - tail, of_starts.size - 1) * error
        low, high = min(low, float(of_starts.mean()) - reach), max(high, float(of_starts.mean()) + reach)
    return PairedRatio(
        pairs=int(logs.size),
        median=math.exp(float(np.median(logs))),
        low=math.exp(low),
        high=math.exp(high),
        spread=math.expm1(float(third - first) / SIGMA_OF_QUARTILES),
        starts=int(of_starts.size),
    )


@lru_cache(maxsize=64)
def t_quantile(share: float, freedom: int) -> float:
    """Quantile of Student's t for a share in (0.5, 1): at sqrt(freedom) tan(a) its density is cos(a)^(freedom - 1)."""
    angles = np.linspace(0, np.pi / 2, 100_001)[:-1]
    area = np.cumsum(np.cos(angles) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(float(np.interp(2 * share - 1, area / area[-1], angles)))


@lru_cache(maxsize=64)
def _middle_ranks(
    pairs: int, resamples: int, seed: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Of resamples of n sorted values: the ranks of the two that the median lies between, and how often they occur.

    Which values a resample draws depends on n alone, and its median only on their order. With the values sorted, all
    10,000 medians are a few hundred different sums of two of them.
    """
    generator = np.random.default_rng(seed)
    middle = np.empty((resamples, 2), np.intp)
    for start in range(0, resamples, CHUNK):
        drawn = generator.integers(0, pairs, (min(CHUNK, resamples - start), pairs))
        drawn.partition(((pairs - 1) // 2, pairs // 2), axis=1)
        middle[start : start + CHUNK] = drawn[:, [(pairs - 1) // 2, pairs // 2]]
    ranks, times = np.unique(middle, axis=0, return_counts=True)
    return ranks[:, 0], ranks[:, 1], times


def _quantile(values: npt.NDArray[np.float64], times: npt.NDArray[np.intp], share: float) -> float:
    """Quantile, linear between neighbours, of sorted values that each occur so many times."""
    ends = np.cumsum(times)
    position = share * float(ends[-1] - 1)
    below = math.floor(position)
    left, right = values[np.searchsorted(ends, [below, min(below + 1, ends[-1] - 1)], side="right")]
    return float(left + (right - left) * (position - below))


def decide(ratio: PairedRatio, max_slowdown: float) -> tuple[Verdict, str]:
    """The verdict on a slowdown threshold (0.05 is 5 %), and the sentence why."""
    limit = 1 + max_slowdown
    allowed = f"the {100 * max_slowdown:.4g} % allowed"
    if ratio.pairs < MIN_PAIRS:
        return Verdict.INCONCLUSIVE, f"{ratio.pairs} pairs are too few for a verdict; {MIN_PAIRS} are the least"
    if ratio.low > limit:
        return Verdict.FAIL, f"slower than {allowed}: {ratio.change} over {ratio.pairs} pairs"
    if ratio.high <= limit:
        return Verdict.PASS, f"not slower than {allowed}: {ratio.change} over {ratio.pairs} pairs"
    return (
        Verdict.INCONCLUSIVE,
        f"{ratio.change} over {ratio.pairs} pairs leaves open whether it is slower than {allowed}",
    )


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
