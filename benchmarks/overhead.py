"""Harness overhead: the time of a cell that is not spent inside an engine.

From the first request sent to the last one done, minus the requests themselves: judging, hashing,
writing the line, resets. Laws answer in no time, so their row is the harness alone.
"""

from __future__ import annotations

from itertools import groupby

from benchmarks.running import run_of


def measure() -> list[dict[str, object]]:
    """Milliseconds per request beside the engine's own."""
    rows = []
    for experiment, only in (("laws", []), ("five-answers", ["engine=llama.cpp"])):
        records = run_of(experiment, only).requests
        for (label, workload), group in groupby(records, key=lambda r: (r.engine_label, r.workload)):
            cell = list(group)
            span = max(r.sent_ns + r.total_ns for r in cell) - min(r.sent_ns for r in cell)
            inside = sum(r.total_ns for r in cell)
            rows.append(
                {
                    "engine": label,
                    "workload": workload,
                    "requests": len(cell),
                    "engine_ms_per_request": round(inside / len(cell) / 1e6, 2),
                    "overhead_ms_per_request": round((span - inside) / len(cell) / 1e6, 2),
                }
            )
    return rows
