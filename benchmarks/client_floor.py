"""Time to first token of our HTTP client against a server that computes nothing (harness.client_floor)."""

from __future__ import annotations

import json
import statistics

from harness.client_floor import body_of, client_floor


def measure() -> list[dict[str, object]]:
    """Microseconds from send to first event, by prompt length."""
    rows: list[dict[str, object]] = []
    for length, times in client_floor((16, 1038, 16_384)).items():
        ordered = sorted(times)
        rows.append(
            {
                "prompt_len": length,
                "body_bytes": len(json.dumps(body_of(length))),
                "p50_us": round(1000 * statistics.median(ordered), 1),
                "p95_us": round(1000 * ordered[int(0.95 * len(ordered))], 1),
            }
        )
    return rows
