"""How often `hitparity compare` errs on simulated latencies: false alarms where nothing changed, power where it did.

Each simulated comparison has `groups` groups of `pairs` pairs and fails if one of them fails, with intervals widened
for their number as in `harness.compare.latency`. Times vary in these ways:

    even        log-normal, single pairs `spread` apart
    hiccups     the same, and every tenth time longer by an exponential of its own length
    drift       the same, and the candidate's run wanders by 2.5 % to either side, once to and fro
    starts      the same, and each side's one process start is off by 2 % as a whole, which no interval can know
    N starts    the same with N process starts a side, each off by 2 %, which the interval knows from three on
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.statistics import CONFIDENCE, Verdict, decide, paired_ratio

SIMULATIONS = 2_000
SEED = 20_261_129
SHIFTS = (0.0, 0.05, 0.10, 0.20)
SETTINGS: tuple[tuple[str, int, float, int, float], ...] = (
    *(("even", pairs, spread, 1, 0.0) for pairs in (10, 20, 40) for spread in (0.05, 0.10)),
    ("even", 40, 0.20, 1, 0.0),
    ("even", 20, 0.05, 8, 0.0),
    ("even", 40, 0.10, 8, 0.0),
    *(("even", pairs, 0.05, 1, 0.05) for pairs in (10, 20, 40)),
    ("hiccups", 20, 0.05, 1, 0.0),
    ("hiccups", 40, 0.05, 1, 0.05),
    ("drift", 20, 0.05, 1, 0.0),
    ("drift", 20, 0.05, 1, 0.05),
    ("starts", 20, 0.05, 1, 0.0),
    ("starts", 20, 0.05, 1, 0.05),
    ("starts", 40, 0.05, 1, 0.10),
    ("3 starts", 24, 0.05, 1, 0.0),
    ("3 starts", 24, 0.05, 1, 0.05),
    ("5 starts", 40, 0.05, 1, 0.0),
    ("5 starts", 40, 0.05, 1, 0.05),
)
"""Kind of noise, pairs a group, spread of single pairs, groups, `--max-slowdown`."""
BELIEVED = frozenset({"even", "hiccups", "3 starts", "5 starts"})
"""Kinds of noise for which at most 5 % false alarms are promised at every threshold."""


def measure() -> list[dict[str, object]]:
    """One row per setting: shares of comparisons that fail, by the true shift; and that pass, where nothing changed."""
    rows: list[dict[str, object]] = []
    for noise, pairs, spread, groups, threshold in SETTINGS:
        row: dict[str, object] = {
            "noise": noise,
            "pairs": pairs,
            "pair_spread": spread,
            "groups": groups,
            "max_slowdown": threshold,
        }
        for shift in SHIFTS:
            failed, passed = simulate(noise, pairs, spread, groups, threshold, shift)
            row["false_alarms" if shift == 0 else f"power_at_{100 * shift:.0f}_percent"] = round(failed, 4)
            if shift == 0:
                row["passed_unchanged"] = round(passed, 4)
        rows.append(row)
    return rows


def simulate(
    noise: str,
    pairs: int,
    spread: float,
    groups: int,
    threshold: float,
    shift: float,
    simulations: int = SIMULATIONS,
) -> tuple[float, float]:
    """Shares of simulated comparisons that fail and that pass; the same arguments give the same shares."""
    generator = np.random.default_rng(SEED)
    confidence = 1 - (1 - CONFIDENCE) / groups
    failed = passed = 0
    count = int(noise.split(maxsplit=1)[0]) if noise.endswith(" starts") else 1
    numbers = [pair * count // pairs for pair in range(pairs)]
    for _ in range(simulations):
        starts = generator.normal(0, 0.02, (2, count)) if noise.endswith("starts") else np.zeros((2, count))
        verdicts = set()
        for _ in range(groups):
            base = _times(generator, noise, spread, starts[0, numbers])
            candidate = _times(generator, noise, spread, starts[1, numbers] + math.log1p(shift))
            if noise == "drift":
                candidate *= 1 + 0.05 * (np.sin(np.linspace(0, 2 * np.pi, pairs)) / 2)
            verdicts.add(decide(paired_ratio(base, candidate, confidence=confidence, starts=numbers), threshold)[0])
        failed += Verdict.FAIL in verdicts
        passed += verdicts == {Verdict.PASS}
    return failed / simulations, passed / simulations


def _times(
    generator: np.random.Generator, noise: str, spread: float, offsets: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Times of one side `(pairs,)` with the logarithm of each pair's offset; the ratio of two has the wanted spread."""
    times = np.exp(generator.normal(offsets, math.log1p(spread) / math.sqrt(2)))
    if noise == "hiccups":
        times *= 1 + (generator.random(times.size) < 0.1) * generator.exponential(1.0, times.size)
    return times
