"""Cold and warm TTFT of every engine on SmolLM2 bf16, shared parts of 1,024 and 2,048 tokens.

Each shared part is sent cold and then warm with another suffix, so pairs alternate; engines run one at a
time. The first pair of a cell is dropped. A pair counts only if its cold send hit nothing and its warm send
hit what the law says. Engines stand side by side for orientation; the ratio of a row is the result.

vLLM and SGLang multiply in float32 where the CPU has no bf16 instructions, as the reference engine does by
itself: the weights are the same bf16 values, and in bf16 arithmetic a prompt would take half a minute there.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import groupby

from benchmarks.running import probes, run_of
from harness.records import RequestRecord
from reference_engine.compute import cpu_has_bf16


def measure(only: Sequence[str] = ()) -> list[dict[str, object]]:
    """Medians in milliseconds, and the median of the paired ratios cold / warm."""
    dtypes = {} if cpu_has_bf16() else {"vllm": "float32", "sglang": "float32"}
    run = run_of("ttft", only, dtypes)
    ran_in = {cell.engine_label: cell.facts["dtype"] for cell in run.cells if cell.facts}
    rows = []
    for (label, workload), group in groupby(probes(run.requests), key=lambda r: (r.engine_label, r.workload)):
        cell = list(group)
        pairs = [pair for pair in zip(cell[::2], cell[1::2], strict=False) if _counts(*pair)][1:]
        if pairs:
            cold = [c.ttft_ns / 1e6 for c, _ in pairs if c.ttft_ns]
            warm = [w.ttft_ns / 1e6 for _, w in pairs if w.ttft_ns]
            rows.append(
                {
                    "engine": label,
                    "dtype": ran_in[label],
                    "workload": workload,
                    "pairs": len(pairs),
                    "hit_len": pairs[0][1].hit_len,
                    "cold_ms": round(statistics.median(cold), 1),
                    "warm_ms": round(statistics.median(warm), 1),
                    "cold_over_warm": round(statistics.median(c / w for c, w in zip(cold, warm, strict=True)), 1),
                }
            )
    return rows


def _counts(cold: RequestRecord, warm: RequestRecord) -> bool:
    return cold.hit_len == 0 and bool(warm.hit_len) and warm.hit_len == warm.expected_hit_len
