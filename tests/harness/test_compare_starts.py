"""Comparisons of several process starts a side, and of other times than the one to the first token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sample_run import VLLM, sample_run

from harness.compare.comparison import Comparison, compare
from harness.compare.quantity import Quantity
from harness.compare.sides import Side
from harness.records import RequestRecord
from harness.statistics import Verdict
from harness.store import Run
from vocabulary.errors import UsageError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return sample_run(tmp_path_factory.mktemp("run"), [VLLM], ["ladder"])


def started(run: Run, factors: list[float], seed: int) -> Run:
    """The run as if its engine had been started once for each factor, so many times slower as a whole."""
    generator = np.random.default_rng(seed)

    def timed(request: RequestRecord, start: int, factor: float) -> RequestRecord:
        times = [factor * float(np.exp(generator.normal(0, 0.02))) for _ in range(2)]
        ttft = round((request.ttft_ns or 1) * times[0])
        return request.model_copy(
            update={
                "cell": f"{request.cell}--start{start}",
                "ttft_ns": ttft,
                "total_ns": ttft + round(1e6 * times[1]) * max(len(request.output_ids) - 1, 0),
            }
        )

    numbered = list(enumerate(factors, start=1))
    cells = [c.model_copy(update={"cell": f"{c.cell}--start{n}"}) for n, _ in numbered for c in run.cells]
    return replace(
        run,
        manifest=run.manifest.model_copy(
            update={"cells": tuple(cell.cell for cell in cells), "machine": {"clock_source": "tsc"}}
        ),
        cells=tuple(cells),
        requests=tuple(timed(request, start, factor) for start, factor in numbered for request in run.requests),
    )


def against(base: Run, candidate: Run, threshold: float | None = 0.05, *times: Quantity) -> Comparison:
    return compare(
        Side("base", base, None),
        Side("candidate", candidate, None),
        max_slowdown=threshold,
        times=times or (Quantity.TTFT,),
    )


def test_every_start_is_compared(run: Run) -> None:
    seen = against(started(run, [1, 1, 1], 0), started(run, [1, 1, 1], 1))
    assert [cell.where[-7:] for cell in seen.cells] == ["start 1", "start 2", "start 3"]
    assert sum(cell.sends for cell in seen.cells) == 3 * seen.cells[0].sends
    assert seen.verdict is Verdict.PASS
    assert {line.ratio.starts for line in seen.latency} == {3}


def test_a_change_in_one_start_alone_is_seen(run: Run) -> None:
    base = started(run, [1, 1, 1], 0)
    hit = next(r for r in base.requests if r.role == "probe" and r.hit_len and r.cell.endswith("start2"))
    other = hit.model_copy(update={"hit_len": (hit.hit_len or 0) - 1})
    changed = replace(base, requests=tuple(other if r is hit else r for r in base.requests))
    seen = against(base, changed, None)
    assert seen.verdict is Verdict.FAIL
    assert [change.where[-7:] for change in seen.changes] == ["start 2"]


def test_what_starts_differ_by_is_in_the_interval(run: Run) -> None:
    """Three starts that are 20 % slower, alike and 20 % faster decide nothing; the same pairs as one start would."""
    base, apart = started(run, [1, 1, 1], 0), started(run, [1.2, 1.2, 0.8], 1)
    seen = against(base, apart)
    assert seen.verdict is Verdict.INCONCLUSIVE
    assert not [warning for warning in seen.warnings if "was started" in warning]
    assert against(base, started(run, [1.2, 1.2, 1.2], 1)).verdict is Verdict.FAIL


@pytest.mark.parametrize(("starts", "word"), [(1, "once"), (2, "twice")])
def test_few_starts_are_warned_about_with_the_remedy(run: Run, starts: int, word: str) -> None:
    seen = against(started(run, [1] * starts, 0), started(run, [1] * starts, 1))
    (warning,) = [warning for warning in seen.warnings if f"started {word}" in warning]
    assert "`starts = 3`" in warning


def test_unequal_numbers_of_starts_are_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="process starts differ: candidate has no ladder on tiny-qwen3, start 3"):
        against(started(run, [1, 1, 1], 0), started(run, [1, 1], 1))


def test_other_times_are_judged_when_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    chat = sample_run(tmp_path_factory.mktemp("chat"), [VLLM], ["chat"])
    base = started(chat, [1, 1, 1], 0)
    slow = replace(
        base,
        requests=tuple(
            r.model_copy(update={"total_ns": 2 * (r.total_ns - (r.ttft_ns or 0)) + (r.ttft_ns or 0)})
            for r in base.requests
        ),
    )
    assert against(base, slow, 0.05).verdict is not Verdict.FAIL
    seen = against(base, slow, 0.05, Quantity.TPOT, Quantity.TOTAL)
    assert seen.verdict is Verdict.FAIL
    assert {line.quantity for line in seen.latency} == {Quantity.TPOT, Quantity.TOTAL}
    tpot = next(line for line in seen.latency if line.quantity is Quantity.TPOT)
    assert tpot.ratio.median == pytest.approx(2)
    assert "TPOT: slower than the 5 % allowed" in " ".join(seen.why)


def test_a_time_that_no_request_has_is_said(run: Run) -> None:
    single = replace(run, requests=tuple(r.model_copy(update={"output_ids": r.output_ids[:1]}) for r in run.requests))
    seen = against(single, single, 0.05, Quantity.TPOT)
    assert seen.verdict is Verdict.INCONCLUSIVE
    assert any("max_tokens = 2" in sentence for sentence in seen.why)
    assert against(single, single, None, Quantity.TPOT).verdict is Verdict.PASS
