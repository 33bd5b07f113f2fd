"""Latency pairs: what is sent, what counts, and the numbers that follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_run import VLLM, WORKLOADS_AND_EDGES, sample_run

from harness.cli import main
from harness.latency import P99_LEAST, latencies, pairs_of
from harness.latency_page import latency_page
from harness.records import RequestRecord, Role
from harness.store import Run
from workloads.families.pairs import Pairs, pairs
from workloads.source import TokenSource


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    WORKLOADS_AND_EDGES["pairs"] = ("pairs", {"shared": [64, 256], "pairs": 4, "warm_up": 1, "max_tokens": 4})
    return sample_run(tmp_path_factory.mktemp("run"), [VLLM], ["pairs"])


def test_halves_do_the_same_work_on_the_same_prompts() -> None:
    sends = pairs(Pairs(shared=(64,), pairs=2, warm_up=1), TokenSource(0, 2048))
    halves = [sends[i : i + 2] for i in range(0, len(sends), 2)]
    assert [half[1].label for half in halves] == [
        "64 warm-up 1 warm",
        "64 warm-up 1 cold",
        "64 pair 1 cold",
        "64 pair 1 warm",
        "64 pair 2 warm",
        "64 pair 2 cold",
    ]
    for one, other in zip(halves[::2], halves[1::2], strict=True):
        assert [send.parts for send in one] == [send.parts for send in other]
    assert all(prime.reset_before for prime, _ in halves)
    assert [timed.reset_before for _, timed in halves] == [timed.label.endswith("cold") for _, timed in halves]


def test_the_order_is_balanced_over_lengths_and_the_cold_prime_can_be_left_out() -> None:
    sends = pairs(Pairs(shared=(64, 128), pairs=1, warm_up=0, prime_cold=False), TokenSource(0, 2048))
    assert [send.label for send in sends] == [
        "64 pair 1 cold",
        "64 pair 1 prime",
        "64 pair 1 warm",
        "128 pair 1 prime",
        "128 pair 1 warm",
        "128 pair 1 cold",
    ]
    assert [send.reset_before for send in sends] == [True, True, False, True, False, True]


def test_pairs_are_verified_by_hits(run: Run) -> None:
    found = pairs_of(run.requests)
    assert len(found) == 8
    assert {(p.cold.prompt_len, p.cold.hit_len, p.warm.hit_len) for p in found} == {(78, 0, 64), (270, 0, 256)}
    assert all(p.rejected is None for p in found)
    assert sum(r.role is Role.PROBE and r.label.endswith(" prime") for r in run.requests) == 20


def test_the_numbers_are_the_records(run: Run) -> None:
    rows, gaps = latencies(run.requests)
    assert not gaps
    for row in rows:
        pair = next(p for p in pairs_of(run.requests) if p.cold.prompt_len == row.prompt_len)
        assert (row.pairs, row.starts, row.warm_faster) == (4, 1, 4)
        # The played engine takes the same time for equal work: 2 ms and a fixed time per computed token.
        assert (row.ttft.cold_ms, row.ttft.warm_ms) == (pair.cold.ttft_ns / 1e6, pair.warm.ttft_ns / 1e6)  # type: ignore[operator]
        assert row.ttft_ratio.median == pytest.approx(row.ttft.warm_ms / row.ttft.cold_ms)
        assert row.ttft.cold_p99_ms is None
        assert row.tpot is not None


def test_the_page_holds_the_numbers_and_what_was_left_out(run: Run) -> None:
    rows, _ = latencies(run.requests)
    floors = {row.prompt_len: 0.5 for row in rows}
    text = latency_page(run, rows, ["a pair was left out"], floors, ["latency/latency-slopes.svg"])
    for row in rows:
        assert f"| {row.prompt_len} | {row.hit_len} | 4 | 1 | 4 of 4 |" in text
        assert f"{row.ttft.speedup:.2f} | " in text
    assert "![latency slopes](latency/latency-slopes.svg)" in text
    assert "- a pair was left out" in text
    assert text == latency_page(run, rows, ["a pair was left out"], floors, ["latency/latency-slopes.svg"])


def test_the_command_writes_the_page_of_a_run(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "latency.md"
    monkeypatch.setattr("sys.argv", ["hitparity", "latency", str(run.folder), "--markdown", str(page)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (None, 0)
    assert "(latency/latency-over-prefix.svg)" in page.read_text(encoding="utf-8")
    assert (tmp_path / "latency" / "latency-over-prefix.svg").stat().st_size
    # Floors are measured once and kept: reading the run again measures nothing.
    kept = (run.folder / "latency.json").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main()
    assert (run.folder / "latency.json").read_text(encoding="utf-8") == kept


def changed(run: Run, kind: str, **fields: object) -> list[RequestRecord]:
    """The run with one timed request of the first pair changed."""
    target = next(r for r in run.requests if r.role is Role.PROBE and r.label == f"64 pair 1 {kind}")
    return [r.model_copy(update=fields) if r is target else r for r in run.requests]


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("cold", {"hit_len": 32}, "the cold request hit 32"),
        ("cold", {"hit_len": None}, "the cold request hit None"),
        ("warm", {"hit_len": 0}, "the warm request hit nothing"),
        ("warm", {"hit_len": 32}, "the warm request hit 32, the law says 64"),
        ("warm", {"output_ids": (1, 2, 3, 4)}, "cold and warm generated different tokens"),
        ("warm", {"ttft_ns": None}, "one of its requests has no time to first token"),
    ],
)
def test_unverified_pairs_do_not_count(run: Run, kind: str, fields: dict[str, object], why: str) -> None:
    rows, _ = latencies(changed(run, kind, **fields))
    row = next(row for row in rows if row.prompt_len == 78)
    assert (row.pairs, row.rejected) == (3, (why,))


def test_an_engine_that_never_hits_is_a_gap(run: Run) -> None:
    cold = [r.model_copy(update={"hit_len": 0}) for r in run.requests]
    rows, gaps = latencies(cold)
    assert not rows
    assert gaps[0].endswith("no pair counts (the warm request hit nothing)")


def test_p99_needs_samples(run: Run) -> None:
    many = [r.model_copy(update={"cell": f"{r.cell}-{n}"}) for n in range(P99_LEAST // 4) for r in run.requests]
    rows, _ = latencies(many)
    assert all(row.ttft.cold_p99_ms is not None for row in rows)
    assert {row.starts for row in rows} == {P99_LEAST // 4}
