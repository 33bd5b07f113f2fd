"""Hit against saved time: the published table's shape, and what may be compared with what."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_run import VLLM, sample_run

from harness.figures import savings_dumbbells
from harness.records import RequestRecord, Role
from harness.savings import Savings, savings
from vocabulary.ledger import Cause

# Published medians in ms: vLLM 0.26.0 + vLLM-Ascend 0.26.0rc1, Qwen3-0.6B on one NPU, block 128, 14 tokens behind the
# prefix, 64 generated. (prefix, cold TTFT, warm TTFT, speed-up as published)
PUBLISHED = [
    (1024, 37.28, 37.36, 1.00),
    (4096, 49.17, 39.55, 1.24),
    (8192, 111.08, 42.07, 2.64),
    (16384, 318.51, 47.28, 6.74),
]
COLD_TOTAL, WARM_TOTAL, SAVED_OF_REQUEST = 2410.80, 2142.90, 0.111  # at 16,384


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> RequestRecord:
    run = sample_run(tmp_path_factory.mktemp("run"), [VLLM], ["changed"])
    return next(r for r in run.requests if r.role is Role.PROBE and r.hit_len == 1024)


def timed(
    template: RequestRecord, *, prefix: int, hit: int, ttft_ms: float, total_ms: float, **more: object
) -> RequestRecord:
    length = prefix + 14
    ledger = [{"start": 0, "end": hit, "cause": "reused"}] if hit else []
    ledger.append({"start": hit, "end": length, "cause": "novel"})
    fields = {
        "prompt_len": length,
        "lcp_len": prefix if hit else 0,
        "hit_len": hit,
        "position_start": hit,
        "tail_len": length - hit,
        "ttft_ns": round(ttft_ms * 1e6),
        "total_ns": round(total_ms * 1e6),
        "ledger": ledger,
        **more,
    }
    return RequestRecord.model_validate(template.model_dump(by_alias=True) | fields)


def rows(template: RequestRecord, prefix: int, cold_ms: float, warm_ms: float) -> list[Savings]:
    cold = timed(template, prefix=prefix, hit=0, ttft_ms=cold_ms, total_ms=COLD_TOTAL)
    warm = timed(template, prefix=prefix, hit=prefix, ttft_ms=warm_ms, total_ms=WARM_TOTAL)
    return savings([cold, warm, cold, warm])


@pytest.mark.parametrize(("prefix", "cold_ms", "warm_ms", "speedup"), PUBLISHED)
def test_published_speedups(
    template: RequestRecord, prefix: int, cold_ms: float, warm_ms: float, speedup: float
) -> None:
    (row,) = rows(template, prefix, cold_ms, warm_ms)
    assert round(row.cold_ttft_ns / row.warm_ttft_ns, 2) == speedup
    assert row.hit_share == prefix / (prefix + 14)


def test_a_hit_that_saves_nothing_is_one_line(template: RequestRecord) -> None:
    (row,) = rows(template, *PUBLISHED[0][:3])
    assert row.sentence == "98.7 % hit, TTFT unchanged (37.3 -> 37.4 ms)"


def test_share_of_the_request(template: RequestRecord) -> None:
    (row,) = rows(template, *PUBLISHED[-1][:3])
    assert round(row.request_saved, 3) == SAVED_OF_REQUEST
    assert row.prefill_share == pytest.approx(318.51 / COLD_TOTAL)
    assert row.sentence.startswith("99.9 % hit, TTFT 6.74x faster")


def test_the_first_cold_request_is_left_out(template: RequestRecord) -> None:
    cold = [timed(template, prefix=64, hit=0, ttft_ms=ms, total_ms=1000) for ms in (900, 10, 30)]
    (row,) = savings([*cold, timed(template, prefix=64, hit=64, ttft_ms=5, total_ms=900)])
    assert (row.cold, row.cold_ttft_ns) == (2, 20e6)


def test_only_equal_lengths_are_compared(template: RequestRecord) -> None:
    cold = timed(template, prefix=64, hit=0, ttft_ms=10, total_ms=100)
    warm = timed(template, prefix=96, hit=96, ttft_ms=5, total_ms=90)
    assert savings([cold, warm]) == []
    assert savings_dumbbells([cold, warm]) is None


def test_sentinels_and_untimed_requests_are_left_out(template: RequestRecord) -> None:
    cold = timed(template, prefix=64, hit=0, ttft_ms=10, total_ms=100, role="sentinel")
    silent = timed(template, prefix=64, hit=0, ttft_ms=1, total_ms=100, ttft_ns=None)
    warm = timed(template, prefix=64, hit=64, ttft_ms=5, total_ms=90)
    assert savings([cold, silent, warm]) == []


def test_avoidable_tokens_by_cause(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM], ["changed"])
    found = {row.lcp_len: row for row in savings(run.requests) if row.hit_len == 1024}
    # 1,038 tokens in blocks of 32: the repeat loses 13 to the block and 1 to the cap, the sibling (1,026 shared) 2.
    assert {lcp: (row.tail_len, dict(row.lost)) for lcp, row in found.items()} == {
        1038: (14, {Cause.GRANULE: 13}),
        1026: (14, {Cause.GRANULE: 2}),
    }
