"""Run the benchmarks named (default: all but load, mutants, soak) and write benchmarks/results/<name>.json.

`python -m benchmarks soak --minutes 60`
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.page import write_page
from harness.machine import machine_facts
from vocabulary.errors import ExitCode, HitparityError

DEFAULT = (
    "client_floor",
    "overhead",
    "law_speed",
    "trace_speed",
    "trace_cross",
    "calibration",
    "reference_speed",
)
NAMES = (*DEFAULT, "load", "mutants", "soak")
INSTALL = {
    "torch": "hitparity[reference]",
    "pytest": "hitparity[dev]",
    "hypothesis": "hitparity[dev]",
    "cosmic_ray": "cosmic-ray>=8.3",
    "coverage": "coverage>=7.6",
}
"""What pip installs for a module that some benchmark imports and hitparity itself does not need."""
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Measure and print; 2 for an unknown name or a package that is not installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--minutes", type=float, default=60, help="how long soak runs (default: 60)")
    asked = parser.parse_args()
    names = asked.names or DEFAULT
    if unknown := [name for name in names if name not in NAMES]:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(NAMES)}", file=sys.stderr)
        return ExitCode.USAGE
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        try:
            rows = _measure(name, asked.minutes)
        except ModuleNotFoundError as missing:
            if missing.name not in INSTALL:
                raise
            print(f"{name}: {missing.name} is not installed; pip install '{INSTALL[missing.name]}'", file=sys.stderr)
            return ExitCode.USAGE
        except HitparityError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return error.exit_code
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        document = {"benchmark": name, "date": today, "machine": machine_facts(), "rows": rows}
        (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"\n{name}")
        for row in rows:
            print("  " + "  ".join(f"{key}={value}" for key, value in row.items()))
        write_page(RESULTS)
    return ExitCode.CLEAN


def _measure(name: str, minutes: float) -> list[dict[str, object]]:
    """The benchmark's rows; it is imported here, so that what one needs the others do not."""
    module = import_module(f"benchmarks.{name}")
    rows: list[dict[str, object]] = module.measure(minutes) if name == "soak" else module.measure()
    return rows


sys.exit(main())
