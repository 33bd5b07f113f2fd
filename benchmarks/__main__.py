"""Run the benchmarks named (default: all but load, mutants, soak) and write benchmarks/results/<name>.json.

`python -m benchmarks soak --minutes 60`
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    calibration,
    client_floor,
    law_speed,
    load,
    mutants,
    overhead,
    reference_speed,
    soak,
    trace_cross,
    trace_speed,
)
from benchmarks.page import write_page
from harness.machine import machine_facts

BENCHMARKS: dict[str, Callable[[], list[dict[str, object]]]] = {
    "client_floor": client_floor.measure,
    "overhead": overhead.measure,
    "law_speed": law_speed.measure,
    "trace_speed": trace_speed.measure,
    "trace_cross": trace_cross.measure,
    "calibration": calibration.measure,
    "reference_speed": reference_speed.measure,
}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Measure and print; 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*BENCHMARKS, "load", "mutants", "soak"]))
    parser.add_argument("--minutes", type=float, default=60, help="how long soak runs (default: 60)")
    asked = parser.parse_args()
    soaked = functools.partial(soak.measure, asked.minutes)
    known = BENCHMARKS | {"load": load.measure, "mutants": mutants.measure, "soak": soaked}
    names = asked.names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in known]:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        rows = known[name]()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        document = {"benchmark": name, "date": today, "machine": machine_facts(), "rows": rows}
        (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"\n{name}")
        for row in rows:
            print("  " + "  ".join(f"{key}={value}" for key, value in row.items()))
        write_page(RESULTS)
    return 0


sys.exit(main())
