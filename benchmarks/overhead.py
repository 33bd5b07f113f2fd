"""Harness overhead: the time of a cell that is not spent inside an engine.

From the first request sent to the last one done, minus the requests themselves: judging, hashing,
writing the line, resets. Laws answer in no time, so their row is the harness alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from harness.catalogue import find_experiment
from harness.experiment import load_experiment
from harness.plan import plan
from harness.progress import ConsoleProgress
from harness.runner import Runner, open_run
from harness.store import Run, load_run


def measure() -> list[dict[str, object]]:
    """Milliseconds per request beside the engine's own."""
    rows = []
    for experiment, only in (("laws", []), ("five-answers", ["engine=llama.cpp"])):
        records = _run_of(experiment, only).requests
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


def _run_of(experiment: str, only: Sequence[str] = ()) -> Run:
    """A fresh run of a ready experiment, read back; what could not start is on stderr."""
    path = find_experiment(experiment)
    loaded = load_experiment(path)
    groups = plan(loaded, only)
    progress = ConsoleProgress()
    with tempfile.TemporaryDirectory(prefix="hitparity-bench-") as folder:
        run = open_run(loaded, path, groups, Path(folder), resume=False)
        try:
            Runner(loaded, path, run, progress).run(groups)
        finally:
            progress.stop()
        return load_run(run)
