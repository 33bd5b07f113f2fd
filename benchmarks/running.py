"""Run a ready experiment and read its records back."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from harness.catalogue import find_experiment
from harness.experiment import load_experiment
from harness.plan import plan
from harness.progress import ConsoleProgress
from harness.records import RequestRecord, Role
from harness.runner import Runner, open_run
from harness.store import Run, load_run


def run_of(experiment: str, only: Sequence[str] = (), dtypes: Mapping[str, str] = MappingProxyType({})) -> Run:
    """A fresh run, read back; what could not start is on stderr. `dtypes` overrides the dtype of engines by name."""
    path = find_experiment(experiment)
    loaded = load_experiment(path)
    groups = [
        replace(group, spec=replace(group.spec, dtype=dtypes.get(group.spec.engine, group.spec.dtype)))
        for group in plan(loaded, only)
    ]
    progress = ConsoleProgress()
    with tempfile.TemporaryDirectory(prefix="hitparity-bench-") as folder:
        run = open_run(loaded, path, groups, Path(folder), resume=False)
        try:
            Runner(loaded, path, run, progress).run(groups)
        finally:
            progress.stop()
        return load_run(run)


def probes(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Only the workload's own requests."""
    return [record for record in records if record.role is Role.PROBE]
