"""Run a ready experiment and read its records back."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.catalogue import find_experiment
from harness.experiment import load_experiment
from harness.plan import plan
from harness.progress import ConsoleProgress
from harness.records import RequestRecord, Role
from harness.runner import Runner, open_run
from harness.store import load_run


def records_of(experiment: str, only: Sequence[str] = ()) -> list[RequestRecord]:
    """All request records of a fresh run; what could not start is on stderr."""
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
        return list(load_run(run).requests)


def probes(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Only the workload's own requests."""
    return [record for record in records if record.role is Role.PROBE]
