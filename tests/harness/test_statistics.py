from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calibration import BELIEVED, SETTINGS, simulate
from harness.statistics import MIN_PAIRS, RESAMPLES, SEED, PairedRatio, Verdict, decide, paired_ratio, t_quantile

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "calibration.json"
TIMES = st.lists(st.floats(1e3, 1e12), min_size=1, max_size=40)


def ratio(low: float, high: float, pairs: int = 20) -> PairedRatio:
    return PairedRatio(pairs=pairs, median=math.sqrt(low * high), low=low, high=high, spread=0.02)


@pytest.mark.parametrize("pairs", [1, 2, 3, 10, 41])
def test_the_interval_is_the_bootstrap_that_it_says(pairs: int) -> None:
    """Against a bootstrap written out: draw pairs, take the median of their log ratios, take percentiles."""
    generator = np.random.default_rng(pairs)
    base, candidate = generator.uniform(1, 2, (2, pairs))
    found = paired_ratio(base, candidate)
    logs = np.sort(np.log(candidate / base))
    draws = np.random.default_rng(SEED)
    drawn = np.concatenate([draws.integers(0, pairs, (1_000, pairs)) for _ in range(RESAMPLES // 1_000)])
    low, high = np.quantile(np.median(logs[drawn], axis=1), [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-12)
    assert found.median == pytest.approx(math.exp(np.median(logs)), rel=1e-12)


@given(TIMES, st.floats(0.1, 10))
@settings(max_examples=60, deadline=None)
def test_a_constant_factor_is_found_exactly(times: list[float], factor: float) -> None:
    found = paired_ratio(times, [time * factor for time in times])
    assert (found.low, found.median, found.high) == pytest.approx((factor, factor, factor), rel=1e-9)
    assert found.spread == pytest.approx(0, abs=1e-9)


@given(TIMES, st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_order_does_not_matter_and_sides_are_alike(times: list[float], seed: int) -> None:
    generator = np.random.default_rng(seed)
    base, candidate = np.asarray(times), generator.permutation(times)
    order = generator.permutation(len(times))
    found, shuffled = paired_ratio(base, candidate), paired_ratio(base[order], candidate[order])
    assert found == shuffled
    swapped = paired_ratio(candidate, base)
    assert swapped.median == pytest.approx(1 / found.median)
    assert found.low <= found.median * (1 + 1e-12)
    assert found.median <= found.high * (1 + 1e-12)


def test_a_wider_confidence_gives_a_wider_interval() -> None:
    base, candidate = np.random.default_rng(0).uniform(1, 2, (2, 30))
    narrow, wide = (paired_ratio(base, candidate, confidence=confidence) for confidence in (0.9, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_spread_is_that_of_single_pairs() -> None:
    generator = np.random.default_rng(0)
    base = np.full(5_000, 1e6)
    assert paired_ratio(base, base * np.exp(generator.normal(0, 0.1, 5_000))).spread == pytest.approx(0.105, abs=0.01)


@pytest.mark.parametrize(
    ("base", "candidate"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [math.nan]), ([1.0], [-1.0])]
)
def test_what_is_no_pair_of_times_is_refused(base: list[float], candidate: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs wanted|positive and finite"):
        paired_ratio(base, candidate)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.051, 1.2, Verdict.FAIL),
        (1.049, 1.2, Verdict.INCONCLUSIVE),
        (0.9, 1.05, Verdict.PASS),
        (0.9, 1.0501, Verdict.INCONCLUSIVE),
        (0.5, 0.6, Verdict.PASS),
    ],
)
def test_the_interval_decides(low: float, high: float, verdict: Verdict) -> None:
    found, sentence = decide(ratio(low, high), 0.05)
    assert found is verdict
    assert "5 % allowed" in sentence
    assert "20 pairs" in sentence


def test_too_few_pairs_decide_nothing() -> None:
    assert decide(ratio(2.0, 3.0, MIN_PAIRS - 1), 0.05)[0] is Verdict.INCONCLUSIVE
    assert decide(ratio(2.0, 3.0, MIN_PAIRS), 0.05)[0] is Verdict.FAIL


@pytest.mark.parametrize(
    ("noise", "pairs", "groups"), [("even", 10, 1), ("hiccups", 20, 1), ("even", 20, 4), ("3 starts", 24, 1)]
)
def test_false_alarms_stay_below_five_percent(noise: str, pairs: int, groups: int) -> None:
    failed, _ = simulate(noise, pairs, 0.05, groups, 0.0, 0.0, simulations=300)
    assert failed <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)  # two standard errors of 300 simulations


@pytest.mark.parametrize(
    ("share", "freedom", "quantile"), [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 4, 2.776), (0.995, 9, 3.250)]
)
def test_students_t(share: float, freedom: int, quantile: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(quantile, rel=1e-3)


def test_a_shift_of_ten_percent_is_seen() -> None:
    failed, passed = simulate("even", 20, 0.05, 1, 0.0, 0.10, simulations=100)
    assert failed > 0.95
    assert passed == 0


def test_the_table_of_the_documents_is_that_of_today() -> None:
    """A row of the committed table, simulated again; and what the documents promise of all of them."""
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    assert [(r["noise"], r["pairs"], r["pair_spread"], r["groups"], r["max_slowdown"]) for r in rows] == list(SETTINGS)
    failed, passed = simulate("even", 10, 0.05, 1, 0.0, 0.0)
    assert (rows[0]["false_alarms"], rows[0]["passed_unchanged"]) == (round(failed, 4), round(passed, 4))
    assert all(row["false_alarms"] <= 0.05 for row in rows if row["noise"] in BELIEVED)


def test_comparing_md_quotes_the_table() -> None:
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    page = (RESULT.parents[2] / "docs" / "comparing.md").read_text(encoding="utf-8")
    quoted = [line for line in page.splitlines() if line.startswith(("| 10 |", "| 20 |", "| 40 |"))]
    table = {
        f"| {r['pairs']} | {100 * r['pair_spread']:.0f} % | {100 * r['power_at_5_percent']:.0f} % | "
        f"{100 * r['power_at_10_percent']:.0f} % | {100 * r['power_at_20_percent']:.0f} % |"
        for r in rows
        if r["noise"] == "even" and r["max_slowdown"] == 0 and r["groups"] == 1
    }
    assert len(quoted) == 5
    assert set(quoted) <= table
