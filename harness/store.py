"""Where a run is written: `DIR/<experiment>/<run>/<cell>/{cell.json, requests.jsonl}`.

A request line is handed to the operating system as it is known, so that it outlives the harness however that ends;
once a second it is forced to the disk too, so that a machine that loses power costs a second, and no request waits for
a disk (an fsync takes longer than a law's whole answer). Manifests are replaced atomically: temporary file, fsync,
rename, fsync of the folder. A cell counts as complete only with all the lines its manifest counts; when a broken one is
run again, its whole lines are kept beside the new ones.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ValidationError

from harness.durable import sync_folder, writable
from harness.records import CellManifest, CellStatus, RequestRecord, RunManifest
from harness.upgrade import LaterSchema, read_record
from vocabulary.bounded import inside, read_bytes
from vocabulary.errors import UsageError

LOCK_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
"""Neither truncates nor follows a link that somebody else put there."""
SYNC_S = 1.0
GIVEN = set(RequestRecord.model_fields)
"""pydantic's note of the fields that were given, shared by all lines: one for each would be half of a record."""
MAX_LINE = 16 << 20
"""Characters of a request record; one of a prompt of a million tokens has a tenth."""
RUN_NAME = re.compile(r"(\d{8}T\d{6}Z)(-\d{3})?")
"""UTC time of a run's start; numbered where that was taken or the clock had stepped back."""
RUN_FILE, CELL_FILE, REQUESTS_FILE = "run.json", "cell.json", "requests.jsonl"
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Run:
    """One run read back: manifests, and the request lines of all cells in order."""

    folder: Path
    manifest: RunManifest
    cells: tuple[CellManifest, ...]
    requests: tuple[RequestRecord, ...]
    remarks: tuple[str, ...] = ()
    """What reading had to leave out or open: a torn last line, fields that an earlier hitparity did not write."""


class RequestLog:
    """Appends request records to a cell's `requests.jsonl`, one flushed line each."""

    def __init__(self, folder: Path) -> None:
        """Keeps whole lines of an earlier attempt as `requests.attempt-N.jsonl`."""
        path = folder / REQUESTS_FILE
        self.remark = ""
        """What became of an earlier attempt; empty: there was none."""
        with writable(path):
            folder.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self.remark = _set_aside(path)
            self._file = path.open("x", encoding="utf-8")
            sync_folder(folder)
            sync_folder(folder.parent)
        self.path, self.lines, self._synced = path, 0, time.monotonic()

    def append(self, record: RequestRecord) -> None:
        """Write one line and hand it to the operating system; once a second force it to the disk."""
        with writable(self.path):
            self._file.write(record.model_dump_json(by_alias=True) + "\n")
            self._file.flush()
            if (now := time.monotonic()) - self._synced >= SYNC_S:
                os.fsync(self._file.fileno())
                self._synced = now
        self.lines += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with writable(self.path):
            os.fsync(self._file.fileno())
            self._file.close()


class RunLock:
    """One writer per run folder; UsageError when another process is writing into it."""

    def __init__(self, folder: Path) -> None:
        with writable(folder):
            self._file = open(os.open(folder / ".lock", LOCK_FLAGS, 0o600), "w", encoding="utf-8")  # noqa: PTH123, SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(f"{folder}: another process is writing into this run; wait until it has ended") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def completed(folder: Path, cell: str) -> bool:
    """Whether a cell of a run was completed earlier, and all its lines are there."""
    path, lines = inside(folder, cell, CELL_FILE), inside(folder, cell, REQUESTS_FILE)
    if not path.is_file() or (manifest := _parse(CellManifest, path)).status is not CellStatus.COMPLETE:
        return False
    content = lines.read_bytes() if lines.is_file() else b""
    return content.endswith(b"\n") and content.count(b"\n") == manifest.requests


def load_manifests(folder: Path) -> tuple[RunManifest, tuple[CellManifest, ...]]:
    """A run's manifests without its requests; UsageError names the file that is no record of ours."""
    manifest = _parse(RunManifest, inside(folder, RUN_FILE))
    paths = [inside(folder, cell, CELL_FILE) for cell in manifest.cells]
    return manifest, tuple(_parse(CellManifest, path) for path in paths if path.is_file())


def load_run(folder: Path) -> Run:
    """Read a run folder, interrupted or not; UsageError names the file that is no record of ours."""
    if not (folder / RUN_FILE).is_file():
        raise UsageError(f"{folder}: not a run folder ({RUN_FILE} is missing); give DIR/<experiment>/<run>")
    remarks: list[str] = []
    manifest = _parse(RunManifest, inside(folder, RUN_FILE), remarks.append)
    cells: list[CellManifest] = []
    requests: list[RequestRecord] = []
    for cell in manifest.cells:
        path, ended = inside(folder, cell, REQUESTS_FILE), inside(folder, cell, CELL_FILE)
        lines = _read_lines(path, remarks.append) if path.is_file() else []
        if ended.is_file():
            cells.append(_parse(CellManifest, ended, remarks.append))
            if len(lines) != cells[-1].requests:
                have = f"has {len(lines)}" if path.is_file() else "is missing, with all"
                remarks.append(f"{path}: {have} of the {cells[-1].requests} requests that the cell counted")
        requests += lines
    return Run(folder, manifest, tuple(cells), tuple(requests), tuple(remarks))


def latest_run(experiment_folder: Path) -> Path | None:
    """The newest run folder of an experiment, by name; folders named otherwise than runs are passed over."""
    runs = [path.parent for path in experiment_folder.glob(f"*/{RUN_FILE}") if RUN_NAME.fullmatch(path.parent.name)]
    return max(runs, default=None)


def _set_aside(path: Path) -> str:
    """Move an earlier attempt's lines out of the way, without a last one that is torn; what was done, in a sentence."""
    content = path.read_bytes()
    whole, newline, torn = content.rpartition(b"\n")
    lines = whole.count(b"\n") + bool(newline)
    if torn:
        with path.open("r+b") as file:
            file.truncate(len(whole) + len(newline))
    attempt = sum(1 for _ in path.parent.glob("requests.attempt-*.jsonl")) + 1
    kept = path.rename(path.with_name(f"requests.attempt-{attempt}.jsonl"))
    dropped = f"; line {lines + 1} was torn by the end of the run and is dropped" if torn else ""
    return f"run again from its beginning; {lines} lines of the broken attempt are in {kept.name}{dropped}"


def _read_lines(path: Path, remark: Callable[[str], None]) -> list[RequestRecord]:
    records: dict[str, RequestRecord] = {}
    left_open: dict[str, int] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), ""), start=1):
            if len(line) == MAX_LINE:
                raise UsageError(f"{path}: line {number} is over {MAX_LINE} characters; it is not a request record")
            if not line.endswith("\n"):
                remark(f"{path}: line {number} is torn (the run was killed while writing it) and is left out")
                break
            try:
                record, opened = read_record(RequestRecord, line)
            except ValidationError as error:
                raise UsageError(f"{path}: line {number} is not a request record: {_first(error)}") from None
            except LaterSchema as error:
                raise UsageError(f"{path}: line {number} cannot be read: {error}") from None
            if record.request_id in records:
                remark(f"{path}: line {number} repeats request {record.request_id!r} and is left out")
                continue
            object.__setattr__(record, "__pydantic_fields_set__", GIVEN)
            records[record.request_id] = record
            if opened:
                left_open[opened] = left_open.get(opened, 0) + 1
    for opened, lines in left_open.items():
        remark(f"{path}: {lines} line{'' if lines == 1 else 's'} of an earlier hitparity: {opened}")
    return list(records.values())


def _parse(model: type[Model], path: Path, remark: Callable[[str], None] = lambda _: None) -> Model:
    try:
        record, opened = read_record(model, read_bytes(path))
    except LaterSchema as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except ValidationError as error:
        raise UsageError(f"{path}: not a {model.__name__}: {_first(error)}") from None
    if opened:
        remark(f"{path}: written by an earlier hitparity: {opened}")
    return record


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in problem['loc']) or 'whole'}: {problem['msg']}"
