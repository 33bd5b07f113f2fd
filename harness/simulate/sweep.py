"""All cells of a sweep: run in local processes, resumable, with progress.

DIR/<trace>/<UTC time>/run.json          the trace's digest and the cells
DIR/<trace>/<UTC time>/<cell>/...        cell.py
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness.durable import writable, write_manifest
from harness.simulate.cell import PROGRESS_FILE, RESULT_FILE, run_job
from harness.simulate.job import SCHEMA, CellResult, Job
from vocabulary.errors import HitparityError, UsageError

RUN_FILE = "run.json"
POLL_S = 0.5


class SweepManifest(BaseModel):
    """What a sweep's folder holds."""

    model_config = ConfigDict(populate_by_name=True)

    schema_id: str = Field(SCHEMA, alias="schema")
    trace: str
    """As given on the command line."""
    trace_sha256: str
    cells: list[str]


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that gave no result."""

    cell: str
    why: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep's folder and what is to be run in it."""

    folder: Path
    jobs: tuple[Job, ...]
    requests: bool = True
    """Whether requests are written, beside totals."""

    def done(self) -> dict[str, CellResult]:
        """Results of the cells that are complete, by cell, in the order of the jobs."""
        return {job.cell: found for job in self.jobs if (found := read_result(self.folder / job.cell)) is not None}

    def left(self) -> list[Job]:
        """Jobs without a result."""
        return [job for job in self.jobs if not (self.folder / job.cell / RESULT_FILE).is_file()]


class Watcher(Protocol):
    """Told what happens."""

    def moved(self, counts: Mapping[str, int]) -> None:
        """Requests done in each running cell."""
        ...

    def ended(self, job: Job, result: CellResult | None, why: str | None) -> None:
        """A cell has a result, or a reason for having none."""
        ...


def open_sweep(results: Path, jobs: Sequence[Job], *, resume: bool, requests: bool = True) -> Sweep:
    """A new folder for the sweep, or its latest one. UsageError where the trace has changed since."""
    trace = jobs[0].trace.path
    digest = trace_digest(trace)
    parent = results / trace.name.partition(".")[0]
    unique = tuple({job.cell: job for job in jobs}.values())
    if resume:
        earlier = sorted(path.parent for path in parent.glob(f"*/{RUN_FILE}"))
        if not earlier:
            raise UsageError(f"{parent}: holds no sweep to resume; run without --resume")
        folder = earlier[-1]
        manifest = _read(folder / RUN_FILE)
        if manifest.trace_sha256 != digest:
            raise UsageError(f"{folder}: {trace} has changed since; run without --resume")
        cells = list(dict.fromkeys([*manifest.cells, *(job.cell for job in unique)]))
    else:
        folder, cells = _fresh(parent), [job.cell for job in unique]
    made = SweepManifest(schema=SCHEMA, trace=str(trace), trace_sha256=digest, cells=cells)
    write_manifest(folder / RUN_FILE, made)
    return Sweep(folder, unique, requests)


def run_local(sweep: Sweep, watcher: Watcher, workers: int | None = None) -> list[Failure]:
    """Run what is left in processes of this machine (default: a core each); failures do not stop the others."""
    left = sweep.left()
    most = min(workers or len(os.sched_getaffinity(0)), len(left))
    if most <= 1:
        return list(_one_by_one(sweep, left, watcher))
    failures: list[Failure] = []
    # A fork of a process with threads (Arrow's) may hang; forkserver starts from a clean one.
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(most, mp_context=context) as pool:
        running: dict[Future[CellResult], Job] = {
            pool.submit(_in_worker, job, sweep.folder / job.cell, sweep.requests): job for job in left
        }
        try:
            while running:
                ended, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                watcher.moved(_counts(sweep.folder, running.values()))
                for future in ended:
                    failures += _ended(running.pop(future), future, watcher)
        except KeyboardInterrupt:
            for process in list(pool._processes.values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failures


def _one_by_one(sweep: Sweep, jobs: Sequence[Job], watcher: Watcher) -> Iterator[Failure]:
    for job in jobs:
        try:
            result = run_job(job, sweep.folder / job.cell, requests=sweep.requests, progress=_told(watcher, job.cell))
        except HitparityError as error:
            watcher.ended(job, None, str(error))
            yield Failure(job.cell, str(error))
        else:
            watcher.ended(job, result, None)


def _told(watcher: Watcher, cell: str) -> Callable[[int], None]:
    return lambda count: watcher.moved({cell: count})


def _ended(job: Job, future: Future[CellResult], watcher: Watcher) -> list[Failure]:
    try:
        watcher.ended(job, future.result(), None)
    except HitparityError as error:
        why = str(error)
    except BrokenProcessPool:
        why = "its process was killed, perhaps for memory; run again with --resume, and fewer --workers"
    else:
        return []
    watcher.ended(job, None, why)
    return [Failure(job.cell, why)]


def _in_worker(job: Job, folder: Path, requests: bool) -> CellResult:
    def noted(count: int) -> None:
        (folder / PROGRESS_FILE).write_text(str(count), encoding="ascii")

    try:
        return run_job(job, folder, requests=requests, progress=noted)
    finally:
        (folder / PROGRESS_FILE).unlink(missing_ok=True)


def _counts(folder: Path, jobs: Iterable[Job]) -> dict[str, int]:
    counts = {}
    for job in jobs:
        path = folder / job.cell / PROGRESS_FILE
        text = path.read_text(encoding="ascii") if path.is_file() else ""
        if text.isdigit():
            counts[job.cell] = int(text)
    return counts


def read_result(folder: Path) -> CellResult | None:
    """A cell's result; None where it is not complete. UsageError where the file is none of ours."""
    path = folder / RESULT_FILE
    if not path.is_file():
        return None
    try:
        return parse_result(path.read_bytes())
    except ValidationError as error:
        raise UsageError(f"{path}: not a cell of a simulation: {error.errors()[0]['msg']}; remove the folder") from None


def parse_result(text: bytes) -> CellResult:
    """A cell's file; ValidationError where it is none."""
    return TypeAdapter(CellResult).validate_json(text)


def trace_digest(path: Path) -> str:
    """SHA-256 of the trace file; UsageError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _fresh(parent: Path) -> Path:
    while True:
        folder = parent / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
        with writable(parent):
            parent.mkdir(parents=True, exist_ok=True)
            if not folder.exists():
                folder.mkdir()
                return folder
        time.sleep(0.001)


def _read(path: Path) -> SweepManifest:
    try:
        return SweepManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UsageError(f"{path}: not a sweep of ours: {error.errors()[0]['msg']}") from None
