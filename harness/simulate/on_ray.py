"""A sweep on Ray: each cell is a task, on whatever machines the cluster has.

The trace's bytes travel through Ray's object store and a cell's files come back through it, so machines share no
folder; they need hitparity of the same version. A cell whose worker or machine is lost is run again from its beginning.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.durable import writable
from harness.machine import hitparity_version
from harness.simulate.cell import RESULT_FILE, run_job
from harness.simulate.job import CellResult, Job
from harness.simulate.sweep import POLL_S, Failure, Sweep, Watcher, parse_result
from vocabulary.errors import EngineUnavailable, HitparityError, UsageError

RETRIES = 3
"""How often a cell is run again after its worker was lost."""
Files = dict[str, bytes]


def run_on_ray(sweep: Sweep, watcher: Watcher, address: str | None) -> list[Failure]:
    """Run what is left on the cluster at `address`; None: a cluster of this machine, for this sweep only.

    Raises UsageError without Ray and EngineUnavailable where the cluster cannot be reached.
    """
    left = sweep.left()
    if not left:
        return []
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineUnavailable(f"no Ray cluster at {address!r}: {error}; `ray start --head` starts one") from None
    try:
        return _run(ray, sweep, left, watcher)
    finally:
        if started:
            ray.shutdown()


def _run(ray: Any, sweep: Sweep, left: list[Job], watcher: Watcher) -> list[Failure]:
    trace = ray.put(left[0].trace.path.read_bytes())
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_in_task)
    version = hitparity_version()
    running = {task.remote(job, trace, sweep.requests, version): job for job in left}
    failures = []
    while running:
        ended, _ = ray.wait(list(running), timeout=POLL_S)
        for reference in ended:
            job = running.pop(reference)
            try:
                files = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                why = str(error.cause) if isinstance(error.cause, HitparityError) else str(error)
            except ray.exceptions.RayError as error:
                why = f"its worker was lost {RETRIES + 1} times: {error}"
            else:
                watcher.ended(job, _keep(files, sweep.folder / job.cell), None)
                continue
            failures.append(Failure(job.cell, why))
            watcher.ended(job, None, why)
    return failures


def _in_task(job: Job, trace: bytes, requests: bool, version: str) -> Files:
    """Runs on a worker."""
    if version != (here := hitparity_version()):
        raise UsageError(f"a Ray worker has hitparity {here}, this sweep was started by {version}; install one version")
    with tempfile.TemporaryDirectory(prefix="hitparity-simulate-") as text:
        folder = Path(text)
        copy = folder / job.trace.path.name
        copy.write_bytes(trace)
        cell = folder / "cell"
        run_job(replace(job, trace=replace(job.trace, path=copy)), cell, requests=requests)
        return {path.name: path.read_bytes() for path in cell.iterdir()}


def _keep(files: Files, folder: Path) -> CellResult:
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files, key=lambda name: name == RESULT_FILE):  # the result last: it makes the cell complete
            (folder / name).write_bytes(files[name])
    return parse_result(files[RESULT_FILE])


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UsageError(
            "--ray needs Ray: pip install 'hitparity[ray]'; without --ray the cores here are used"
        ) from None
    return ray
