"""Runs an experiment: engines started once per group, cells in order, failures kept apart from each other."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydantic import TypeAdapter

from adapters.registry import adapter_for
from checkpoints import Checkpoint
from checkpoints.make import NAMES, ensure
from checkpoints.text import encode
from harness.cell import CellOutcome, CellRun
from harness.experiment import Experiment
from harness.interrupt import Interrupt
from harness.machine import hitparity_version, machine_facts
from harness.plan import Cell, Group
from harness.records import CellManifest, CellStatus, FindingKind, RequestRecord, RunManifest
from harness.store import (
    CELL_FILE,
    REQUESTS_FILE,
    RUN_FILE,
    RequestLog,
    completed,
    latest_run,
    load_run,
    writable,
    write_manifest,
)
from vocabulary.engine import Engine
from vocabulary.errors import EngineFailed, ExitCode, HitparityError, UsageError
from workloads.source import TokenSource

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INCONCLUSIVE = frozenset({FindingKind.COLD_DIFFERS, FindingKind.NO_WARM_HIT})
"""Findings that say nothing against the engine's lookup, but leave a question open."""


class Progress(Protocol):
    """What a caller wants to hear while a run goes on."""

    def group(self, group: Group, cells: int) -> None:
        """An engine is about to start for `cells` cells."""

    def request(self, cell: Cell, record: RequestRecord) -> None:
        """One request was answered and written."""

    def cell(self, cell: Cell, manifest: CellManifest) -> None:
        """A cell has ended."""


def open_run(experiment: Experiment, source: Path, groups: Sequence[Group], results: Path, *, resume: bool) -> Path:
    """Make a new run folder below `results`, or find the latest one to resume.

    Raises UsageError when there is nothing to resume or the experiment has changed since.
    """
    home = results / experiment.name
    if resume:
        folder = latest_run(home)
        if folder is None:
            raise UsageError(f"{home}: no run to resume; run without --resume first")
        earlier = load_run(folder).manifest
        if earlier.experiment_digest != experiment.digest:
            raise UsageError(f"{source} has changed since {folder} was made; run without --resume")
        return folder
    stamp = datetime.datetime.now(datetime.UTC)
    folder = _new_folder(home, stamp.strftime("%Y%m%dT%H%M%SZ"))
    manifest = RunManifest(
        experiment=experiment.name,
        experiment_digest=experiment.digest,
        configuration=experiment.model_dump(mode="json", exclude={"engine": {"__all__": {"environment"}}}),
        hitparity=hitparity_version(),
        started=stamp.isoformat(timespec="seconds"),
        machine=machine_facts(),
        cells=tuple(cell.id for group in groups for cell in group.cells),
    )
    write_manifest(folder / RUN_FILE, manifest)
    return folder


class Runner:
    """Runs the groups of one run folder; `exit_code` says how it went."""

    def __init__(self, experiment: Experiment, source: Path, folder: Path, progress: Progress) -> None:
        self._experiment, self._source, self._folder, self._progress = experiment, source, folder, progress
        self._codes: set[ExitCode] = set()

    @property
    def exit_code(self) -> ExitCode:
        """The gravest thing that happened."""
        order = (ExitCode.INTERRUPTED, ExitCode.UNAVAILABLE, ExitCode.USAGE, ExitCode.FINDINGS, ExitCode.INCONCLUSIVE)
        return next((code for code in order if code in self._codes), ExitCode.CLEAN)

    def run(self, groups: Sequence[Group]) -> ExitCode:
        """Run every cell that is not complete; an interruption ends the run with what was measured kept."""
        try:
            with Interrupt() as interrupt:
                for group in groups:
                    todo = [cell for cell in group.cells if not completed(self._folder, cell.id)]
                    if todo:
                        self._progress.group(group, len(todo))
                        self._run_group(group, todo, interrupt)
        except KeyboardInterrupt:
            self._codes.add(ExitCode.INTERRUPTED)
        return self.exit_code

    def _run_group(self, group: Group, cells: Sequence[Cell], interrupt: Interrupt) -> None:
        """Start the engine, run the cells; an engine that dies is started again for the cells after it."""
        engine: Engine | None = None
        left = list(cells)
        try:
            model = open_model(group.model, self._source)
            log_folder = self._folder / group.log_folder
            log_folder.mkdir(parents=True, exist_ok=True)
            while left:
                if engine is None:
                    engine = adapter_for(group.spec.engine).start(group.spec, model, log_folder)
                if not self._run_cell(group, left[0], engine, model, interrupt):
                    engine.close()
                    engine = None
                left.pop(0)
        except HitparityError as error:
            self._codes.add(error.exit_code)
            for cell in left:
                self._end(group, cell, CellStatus.FAILED, str(error))
        finally:
            if engine is not None:
                engine.close()

    def _run_cell(self, group: Group, cell: Cell, engine: Engine, model: Checkpoint, interrupt: Interrupt) -> bool:
        """Run one cell and write its manifest; False when the engine cannot serve another."""
        source = TokenSource(
            cell.workload.seed,
            min(engine.facts.vocab_size, model.vocab_size),
            reserved=model.reserved_ids,
            granule=engine.facts.granule,
            encode=lambda text: encode(model, text),
            read_text=self._read_text,
        )
        status, why, outcome = CellStatus.COMPLETE, "", None
        try:
            with RequestLog(self._folder / cell.id) as log:
                run = CellRun(
                    engine,
                    cell,
                    self._experiment.checks,
                    log=log,
                    interrupt=interrupt,
                    on_request=lambda record: self._note(cell, record),
                )
                outcome = run.run(source)
        except KeyboardInterrupt:
            self._end(group, cell, CellStatus.INTERRUPTED, "interrupted by a signal", engine=engine, model=model)
            raise
        except HitparityError as error:
            status, why = CellStatus.FAILED, str(error)
            self._codes.add(error.exit_code)
            if isinstance(error, EngineFailed):
                self._end(group, cell, status, why, engine=engine, model=model)
                return False
        self._end(group, cell, status, why, engine=engine, model=model, outcome=outcome)
        return True

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
    ) -> None:
        """Write the cell's manifest and tell the caller."""
        findings = outcome.findings if outcome else ()
        self._codes.update(
            ExitCode.INCONCLUSIVE if finding.kind in INCONCLUSIVE else ExitCode.FINDINGS for finding in findings
        )
        requests = self._folder / cell.id / REQUESTS_FILE
        manifest = CellManifest(
            cell=cell.id,
            status=status,
            why=why,
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
            parameters=cell.workload.parameters.model_dump(mode="json"),
            seed=cell.workload.seed,
            requests=requests.read_bytes().count(b"\n") if requests.exists() else 0,
            engine_log=f"{group.log_folder}/engine.log",
        )
        (self._folder / cell.id).mkdir(parents=True, exist_ok=True)
        write_manifest(self._folder / cell.id / CELL_FILE, manifest)
        self._progress.cell(cell, manifest)

    def _note(self, cell: Cell, record: RequestRecord) -> None:
        if record.findings:
            self._codes.add(ExitCode.FINDINGS)
        self._progress.request(cell, record)

    def _read_text(self, name: str) -> str:
        """A text file that a workload names, relative to the experiment file."""
        path = self._source.parent / name
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self._source}: document {name!r} cannot be read: {error}") from None


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
    """`home/stamp`, or the first free `stamp-N` when two runs start within a second."""
    for number in range(1, 1000):
        folder = home / (stamp if number == 1 else f"{stamp}-{number}")
        with writable(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            return folder
    raise UsageError(f"{home}: a thousand runs started in one second; wait a moment")
