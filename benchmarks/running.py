"""Run a ready experiment and read its records back."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.catalogue import find_experiment
from harness.experiment import load_experiment
from harness.plan import plan
from harness.progress import ConsoleProgress
from harness.runner import Runner, open_run
from harness.store import Run, load_run


def run_of(experiment: str, only: Sequence[str] = ()) -> Run:
    """A fresh run, read back; what could not start is on stderr."""
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
