"""Runs an experiment: engines started once per group, cells in order, failures kept apart from each other."""

from __future__ import annotations

import datetime
import hashlib
import json
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydantic import TypeAdapter

from adapters.registry import adapter_for
from checkpoints import Checkpoint
from checkpoints.make import NAMES, ensure
from checkpoints.text import encode
from harness.cell import CellOutcome, CellRun
from harness.durable import sync_folder, writable, write_manifest
from harness.experiment import Experiment
from harness.interrupt import Interrupt
from harness.judge import Judge
from harness.machine import hitparity_version, machine_facts
from harness.outcome import GRAVEST_FIRST, INCONCLUSIVE, exit_code
from harness.plan import Cell, Group
from harness.records import CellManifest, CellStatus, FindingKind, RequestRecord, RunManifest
from harness.resume import check_engine, check_same
from harness.store import (
    CELL_FILE,
    REQUESTS_FILE,
    RUN_FILE,
    RequestLog,
    RunLock,
    completed,
    latest_run,
    load_manifests,
    load_run,
)
from vocabulary.bounded import inside, read_text
from vocabulary.engine import Engine
from vocabulary.errors import EngineFailed, ExitCode, HitparityError, UsageError
from workloads.source import TokenSource

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STRICT = frozenset({FindingKind.UNEXPLAINED, FindingKind.UNBACKED, FindingKind.SURPLUS, FindingKind.FORBIDDEN_HIT})
"""Findings of a request that stop a strict run."""


class StrictStop(HitparityError):
    """A strict run met a finding."""

    exit_code = ExitCode.FINDINGS


ENGINE_LOG, TRACEBACK_FILE = "engine.log", "traceback.txt"


class Progress(Protocol):
    """What a caller wants to hear while a run goes on."""

    def group(self, group: Group, cells: int) -> None:
        """An engine is about to start for `cells` cells."""

    def request(self, cell: Cell, record: RequestRecord) -> None:
        """One request was answered and written."""

    def remark(self, cell: Cell, text: str) -> None:
        """Something a reader of the results should know about a cell."""

    def cell(self, cell: Cell, manifest: CellManifest) -> None:
        """A cell has ended."""


def open_run(experiment: Experiment, source: Path, groups: Sequence[Group], results: Path, *, resume: bool) -> Path:
    """Make a new run folder below `results`, or find the latest one to resume.

    Raises UsageError when there is nothing to resume, another process writes into it, or the code, the experiment or
    a model has changed since.
    """
    home = results / experiment.name
    cells = tuple(cell.id for group in groups for cell in group.cells)
    stamp = datetime.datetime.now(datetime.UTC)
    manifest = RunManifest(
        experiment=experiment.name,
        experiment_digest=_digest(experiment, source),
        configuration=experiment.model_dump(mode="json", exclude={"engine": {"__all__": {"environment"}}}),
        hitparity=hitparity_version(),
        started=stamp.isoformat(timespec="seconds"),
        machine=machine_facts(),
        cells=cells,
    )
    if not resume:
        folder = _new_folder(home, stamp.strftime("%Y%m%dT%H%M%SZ"))
        write_manifest(folder / RUN_FILE, manifest)
        return folder
    latest = latest_run(home)
    if latest is None:
        raise UsageError(f"{home}: no run to resume; run without --resume first")
    with RunLock(latest):
        earlier, finished = load_manifests(latest)
        try:
            check_same(earlier, manifest, finished, lambda name: open_model(name, source).fingerprint)
        except UsageError as error:
            raise UsageError(f"{latest}: {error}") from None
        for draft in (*latest.glob(f".{RUN_FILE}.*"), *latest.glob(f"*/.{CELL_FILE}.*")):
            draft.unlink()  # of a harness that was killed
        more = tuple(cell for cell in cells if cell not in earlier.cells)
        if more:
            write_manifest(latest / RUN_FILE, earlier.model_copy(update={"cells": earlier.cells + more}))
    return latest


class Runner:
    """Runs the groups of one run folder."""

    def __init__(
        self, experiment: Experiment, source: Path, folder: Path, progress: Progress, *, strict: bool = False
    ) -> None:
        """`strict`: the first request with one of the findings in `STRICT` ends the run."""
        self._experiment, self._source, self._folder, self._progress = experiment, source, folder, progress
        self._strict, self._stopped = strict, False

    def run(self, groups: Sequence[Group]) -> ExitCode:
        """Run every cell that is not complete; an interruption ends the run with what was measured kept."""
        interrupted = False
        try:
            with RunLock(self._folder), Interrupt() as interrupt:
                for group in groups:
                    if self._stopped:
                        break
                    todo = [cell for cell in group.cells if not completed(self._folder, cell.id)]
                    if todo:
                        self._progress.group(group, len(todo))
                        self._run_group(group, todo, interrupt)
        except KeyboardInterrupt:
            interrupted = True
        return exit_code(load_run(self._folder), interrupted=interrupted)

    def _run_group(self, group: Group, cells: Sequence[Cell], interrupt: Interrupt) -> None:
        """Start the engine, run the cells; an engine that dies is started again for the cells after it."""
        engine: Engine | None = None
        left = list(cells)
        log_folder = inside(self._folder, *group.log_folder.split("/"))
        for name in (ENGINE_LOG, TRACEBACK_FILE):
            inside(log_folder, name)
        with writable(log_folder):
            log_folder.mkdir(parents=True, exist_ok=True)
        try:
            model = open_model(group.model, self._source)
            while left and not self._stopped:
                if engine is None:
                    engine = adapter_for(group.spec.engine).start(group.spec, model, log_folder)
                    check_engine(engine.facts, group.engine_label, group.model, load_manifests(self._folder)[1])
                    judge = Judge(engine.facts)
                if not self._run_cell(group, left[0], engine, judge, model, interrupt):
                    engine.close()
                    engine = None
                left.pop(0)
        except HitparityError as error:
            for cell in left:
                self._end(group, cell, CellStatus.FAILED, str(error), code=error.exit_code)
        except OSError as error:
            for cell in left:
                self._end(group, cell, CellStatus.FAILED, f"{group.engine_label}: {error}", code=ExitCode.USAGE)
        except Exception:  # noqa: BLE001  (a surprise in one engine must not cost the others their results)
            with writable(log_folder / TRACEBACK_FILE):
                (log_folder / TRACEBACK_FILE).write_text(traceback.format_exc(), encoding="utf-8")
            why = f"an error inside hitparity, please report it: {group.log_folder}/{TRACEBACK_FILE} has the traceback"
            for cell in left:
                self._end(group, cell, CellStatus.FAILED, why, code=ExitCode.UNAVAILABLE)
        finally:
            if engine is not None:
                engine.close()

    def _run_cell(
        self, group: Group, cell: Cell, engine: Engine, judge: Judge, model: Checkpoint, interrupt: Interrupt
    ) -> bool:
        """Run one cell and write its manifest; False when the engine cannot serve another."""
        source = TokenSource(
            cell.workload.seed,
            min(engine.facts.vocab_size, model.vocab_size),
            reserved=model.reserved_ids,
            granule=engine.facts.granule,
            encode=lambda text: encode(model, text),
            read_text=self._read_text,
            locate=lambda name: self._source.parent / name,
        )
        try:
            with RequestLog(self._folder / cell.id) as log:
                if log.remark:
                    self._progress.remark(cell, log.remark)
                run = CellRun(
                    engine,
                    judge,
                    cell,
                    self._experiment.checks,
                    log=log,
                    interrupt=interrupt,
                    on_request=partial(self._request, cell),
                    contents=self._experiment.contents == "full",
                )
                outcome = run.run(source)
        except KeyboardInterrupt:
            why = "interrupted by a signal"
            self._end(group, cell, CellStatus.INTERRUPTED, why, engine=engine, model=model, code=ExitCode.INTERRUPTED)
            raise
        except HitparityError as error:
            self._stopped = isinstance(error, StrictStop)
            self._end(group, cell, CellStatus.FAILED, str(error), engine=engine, model=model, code=error.exit_code)
            return not isinstance(error, EngineFailed)
        with interrupt.deferred():
            self._end(group, cell, CellStatus.COMPLETE, "", engine=engine, model=model, outcome=outcome)
        return True

    def _request(self, cell: Cell, record: RequestRecord) -> None:
        """A line is written; a strict run may end here."""
        self._progress.request(cell, record)
        for finding in record.findings if self._strict else ():
            if finding.kind in STRICT:
                raise StrictStop(
                    f"stopped by --strict: request {record.request_id} ({record.label!r}) is {finding.kind.value}: "
                    f"{finding.detail}; `hitparity explain` on this run says more, --resume runs the cell again"
                )

    def _end(
        self,
        group: Group,
        cell: Cell,
        status: CellStatus,
        why: str,
        *,
        engine: Engine | None = None,
        model: Checkpoint | None = None,
        outcome: CellOutcome | None = None,
        code: ExitCode = ExitCode.CLEAN,
    ) -> None:
        """Write the cell's manifest and tell the caller."""
        findings = outcome.findings if outcome else ()
        codes = {code} | {ExitCode.INCONCLUSIVE if f.kind in INCONCLUSIVE else ExitCode.FINDINGS for f in findings}
        requests = self._folder / cell.id / REQUESTS_FILE
        manifest = CellManifest(
            cell=cell.id,
            status=status,
            why=why,
            exit_code=next(each for each in (*GRAVEST_FIRST, ExitCode.CLEAN) if each in codes),
            valid=outcome is not None and outcome.valid,
            findings=findings,
            engine=group.spec.engine,
            engine_label=cell.engine_label,
            configuration=_plain(group.spec),
            facts=_plain(engine.facts) if engine else None,
            model=cell.model,
            model_fingerprint=model.fingerprint if model else "",
            workload=cell.workload.name,
            family=cell.workload.family.name,
            parameters=cell.workload.parameters_on(engine.facts if engine else None),
            seed=cell.workload.seed,
            requests=requests.read_bytes().count(b"\n") if requests.exists() else 0,
            engine_log=f"{group.log_folder}/{ENGINE_LOG}",
        )
        with writable(self._folder / cell.id):
            (self._folder / cell.id).mkdir(parents=True, exist_ok=True)
        write_manifest(self._folder / cell.id / CELL_FILE, manifest)
        self._progress.cell(cell, manifest)

    def _read_text(self, name: str) -> str:
        return read_document(self._source, name)


def read_document(source: Path, name: str) -> str:
    """A text file that a workload names, relative to the experiment file."""
    try:
        return read_text(source.parent / name)
    except UsageError as error:
        raise UsageError(f"{source}: document {name!r} cannot be read: {error}") from None


def _digest(experiment: Experiment, source: Path) -> str:
    """Of the experiment and of every document it names; reads them, so that a missing one is seen at once."""
    resolved = [entry.resolve()[1] for entry in experiment.workload]
    documents = [getattr(parameters, "document", None) for parameters in resolved]
    texts = [read_document(source, name) for name in documents if isinstance(name, str)]
    traces = [getattr(parameters, "trace", None) for parameters in resolved]
    texts += [_file_digest(source, name) for name in traces if isinstance(name, str)]
    return hashlib.sha256(json.dumps([experiment.digest, *texts]).encode()).hexdigest()


def _file_digest(source: Path, name: str) -> str:
    try:
        with (source.parent / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{source}: trace {name!r} cannot be read: {error.strerror or error}") from None


def open_model(name: str, source: Path) -> Checkpoint:
    """A model by name (built on first use) or by folder, relative to the experiment file."""
    if name in NAMES:
        return ensure(name)
    folder = source.parent / name
    if not folder.is_dir():
        raise UsageError(f"{source}: model {name!r} is neither a folder nor one of {', '.join(NAMES)}")
    return Checkpoint.open(folder)


def _plain(value: DataclassInstance) -> dict[str, Any]:
    """A dataclass as JSON values; the environment's values stay out, they may hold secrets."""
    fields = TypeAdapter(dict[str, Any]).dump_python(asdict(value), mode="json")
    if "environment" in fields:
        fields["environment"] = sorted(fields["environment"])
    return cast(dict[str, Any], fields)


def _new_folder(home: Path, stamp: str) -> Path:
    """`home/stamp`, or the first free `stamp-N` when two runs start within a second.

    Where a later run exists already, the clock has stepped back: its stamp is taken, since the last name is the newest.
    """
    latest = latest_run(home)
    if latest is not None:
        stamp = max(stamp, latest.name.partition("-")[0])
    for number in range(1, 1000):
        folder = home / (stamp if number == 1 else f"{stamp}-{number:03d}")
        with writable(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            sync_folder(home)
            return folder
    raise UsageError(f"{home}: a thousand runs started in one second; wait a moment")
