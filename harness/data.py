"""Results as tables: `load(path)` has one row per request, `load_cells(path)` one per cell.

A path is a run folder or any folder of runs. Lengths and positions are in tokens, times in nanoseconds; columns keep
the names of the records (docs/schema.md lists them), and each cause of the ledger has a column `<cause>_tokens`. What
is unknown is `<NA>`, never 0. Interrupted runs and records of an earlier hitparity are read; what that left open is a
`DataWarning` and stands in `frame.attrs["remarks"]`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pandas as pd
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from harness.records import CellManifest, RequestRecord, Role
from harness.store import RUN_FILE, Run, load_run
from harness.summary import median_ttft, unfinished_cells
from vocabulary.errors import UsageError
from vocabulary.ledger import Cause

TEXT, WHOLE, REAL, TRUTH = "string[python]", "Int64", "Float64", "boolean"
"""pandas types that hold "unknown" beside every value."""
LARGEST = 2**63 - 1
"""No column holds more; an engine that says it is beyond counting has an `out_of_range` finding, and `<NA>` here."""
PART = 4096
"""Rows that are Python objects at a time, before they become columns."""
DEPTH = 2
"""Folders from a results folder down to a run: the experiment's and the run's own."""


class DataWarning(UserWarning):
    """Something was left out or open while results were read."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    dtype: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Tables:
    """The results below a path."""

    requests: pd.DataFrame
    cells: pd.DataFrame
    remarks: tuple[str, ...]
    """What reading left out or open, a sentence each."""


def load(path: Path | str) -> pd.DataFrame:
    """One row per request of a run, or of all runs below a folder, sentinels and controls included (`role`).

    Raises UsageError where no run is found or a file is none of ours.
    """
    return _warned(load_tables(path)).requests


def load_cells(path: Path | str) -> pd.DataFrame:
    """One row per planned cell; a cell that never ran has no `status`. Raises UsageError as `load` does."""
    return _warned(load_tables(path)).cells


def load_tables(path: Path | str) -> Tables:
    """Both tables, and the remarks without a warning."""
    root = Path(path)
    folders = run_folders(root)
    runs = [(_name(root, folder), load_run(folder)) for folder in folders]
    remarks = tuple(remark for name, run in runs for remark in _remarks(name, run))
    requests = _frame(request_columns(), (_request_row(name, run, r) for name, run in runs for r in run.requests))
    cells = _frame(cell_columns(), (row for name, run in runs for row in _cell_rows(name, run)))
    for frame in (requests, cells):
        frame.attrs["remarks"] = list(remarks)
    return Tables(requests, cells, remarks)


def run_folders(root: Path) -> list[Path]:
    """The run at a path, or the runs up to two folders below it, by name; UsageError where there is none."""
    if (root / RUN_FILE).is_file():
        return [root]
    found = {path.parent for depth in range(1, DEPTH + 1) for path in root.glob(f"{'*/' * depth}{RUN_FILE}")}
    if found:
        return sorted(found)
    raise UsageError(
        f"{root}: holds no run ({RUN_FILE} is missing there and below); give DIR/<experiment>/<run> or DIR"
    )


def write_csv(frame: pd.DataFrame, path: Path) -> Path:
    """UTF-8 with a head line; unknown is an empty field. Raises UsageError where it cannot be written."""
    try:
        frame.to_csv(path, index=False, lineterminator="\n")
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def write_parquet(frame: pd.DataFrame, path: Path) -> Path:
    """Types are kept. Needs pyarrow; UsageError says how to get it, or why the file cannot be written."""
    try:
        frame.to_parquet(path, engine="pyarrow", index=False)
    except ImportError:
        raise UsageError(
            f"{path}: Parquet needs pyarrow, which is not installed; pip install 'hitparity[parquet]', or write CSV"
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def request_columns() -> tuple[Column, ...]:
    """The columns of `load`, made from `RequestRecord`."""
    columns = [*_RUN_COLUMNS]
    for column in _columns(RequestRecord):
        columns.append(column)
        if column.name == "ledger":
            columns += _cause_columns()
        if column.name == "findings":
            columns.append(Column("findings_count", WHOLE, "How many findings."))
    return tuple(columns)


def cell_columns() -> tuple[Column, ...]:
    """The columns of `load_cells`: `CellManifest`, what the engine said, and sums over the workload's requests."""
    facts = [Column(name, WHOLE if name == "granule" else TEXT, meaning) for name, meaning in _FACTS.items()]
    sums = [
        Column("probes", WHOLE, "Requests of the workload; sentinels and controls are not counted."),
        Column("prompt_tokens", WHOLE, "Their prompt tokens."),
        *_cause_columns(),
        Column("cold_ttft_ns", WHOLE, "Median TTFT of those with hit 0."),
        Column("warm_ttft_ns", WHOLE, "Median TTFT of those with a hit."),
        Column("request_findings_count", WHOLE, "Findings of all its requests."),
    ]
    return (*_RUN_COLUMNS, *_columns(CellManifest), *facts, *sums)


_RUN_COLUMNS = (
    Column("run", TEXT, "The run's folder, below the path that was loaded."),
    Column("experiment", TEXT, "The experiment's name."),
    Column("started", TEXT, "UTC, ISO 8601."),
)
_FACTS = {
    "version": "As the engine reports it.",
    "mode": "How the engine was reached.",
    "fidelity": "What stands behind the answers.",
    "device": "Where the model ran.",
    "dtype": "What the engine multiplies in.",
    "granule": "Smallest reusable step in tokens.",
    "law": "The law that covers the engine as configured.",
}
_SIMPLE = {str: TEXT, bool: TRUTH, int: WHOLE, float: REAL}
_CAUSE_COLUMNS = {cause: f"{cause.value}_tokens" for cause in Cause}
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=to_jsonable_python)


def _columns(record: type[BaseModel]) -> list[Column]:
    return [
        Column("schema" if name == "schema_id" else name, _dtype(field.annotation), _meaning(name, field.description))
        for name, field in record.model_fields.items()
    ]


def _cause_columns() -> list[Column]:
    return [Column(name, WHOLE, f"Tokens booked to `{cause.value}`.") for cause, name in _CAUSE_COLUMNS.items()]


def _meaning(name: str, description: str | None) -> str:
    as_text = {
        "ledger": "The partition as text, such as `0-64 reused, 64-65 last_token`.",
        "findings": "Their kinds, separated by spaces.",
    }
    return as_text.get(name, description or "")


def _dtype(annotation: Any) -> str:
    """Numbers and truths keep their type; enumerations, lists and objects (as JSON) are text."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    (kind,) = [option for option in options if option is not NoneType] if len(options) <= 2 else [str]
    if isinstance(kind, type) and issubclass(kind, int) and not issubclass(kind, bool):
        return WHOLE
    return _SIMPLE.get(kind, TEXT)


def _frame(columns: Sequence[Column], rows: Iterable[dict[str, object]]) -> pd.DataFrame:
    """Typed columns, with or without rows; a column that a row lacks is unknown there."""
    rows = iter(rows)
    parts = [_typed(columns, list(islice(rows, PART)))]
    while part := list(islice(rows, PART)):
        parts.append(_typed(columns, part))
    return pd.concat(parts, ignore_index=True)


def _typed(columns: Sequence[Column], rows: Sequence[dict[str, object]]) -> pd.DataFrame:
    found = {column.name: [row.get(column.name) for row in rows] for column in columns}
    for column in columns:
        if column.dtype == WHOLE:
            found[column.name] = [_inside(value) for value in found[column.name]]
    return pd.DataFrame({c.name: pd.array(found[c.name], dtype=c.dtype) for c in columns})  # type: ignore[call-overload]


def _inside(value: object) -> object:
    """None for a whole number that no column holds."""
    return None if isinstance(value, int) and not -LARGEST <= value <= LARGEST else value


def _request_row(name: str, run: Run, request: RequestRecord) -> dict[str, object]:
    row = _run_row(name, run) | _values(request)
    row["ledger"] = ", ".join(f"{e.start}-{e.end} {e.cause.value}" for e in request.ledger) or None
    row["findings_count"] = len(request.findings)
    if request.ledger:
        totals = request.by_cause()
        row |= {column: totals.get(cause, 0) for cause, column in _CAUSE_COLUMNS.items()}
    return row


def _cell_rows(name: str, run: Run) -> Iterator[dict[str, object]]:
    by_id = {cell.cell: cell for cell in run.cells}
    of_cell: dict[str, list[RequestRecord]] = {}
    for request in run.requests:
        of_cell.setdefault(request.cell, []).append(request)
    for cell_id in run.manifest.cells:
        requests = of_cell.get(cell_id, [])
        probes = [r for r in requests if r.role is Role.PROBE]
        row = _run_row(name, run) | {"cell": cell_id}
        if cell := by_id.get(cell_id):
            row |= _values(cell) | {key: (cell.facts or {}).get(key) for key in _FACTS}
        row |= {
            "requests": len(requests),
            "probes": len(probes),
            "prompt_tokens": sum(r.prompt_len for r in probes),
            "cold_ttft_ns": median_ttft(probes, warm=False),
            "warm_ttft_ns": median_ttft(probes, warm=True),
            "request_findings_count": sum(len(r.findings) for r in requests),
        }
        if any(r.ledger for r in probes):
            totals = [r.by_cause() for r in probes]
            row |= {c: sum(total.get(cause, 0) for total in totals) for cause, c in _CAUSE_COLUMNS.items()}
        yield row


def _run_row(name: str, run: Run) -> dict[str, object]:
    return {"run": name, "experiment": run.manifest.experiment, "started": run.manifest.started}


def _values(record: RequestRecord | CellManifest) -> dict[str, object]:
    """A record's fields; findings by their kinds, other lists and objects but the ledger as JSON."""
    fields = {key: _cell_value(value) for key, value in record.__dict__.items() if key not in ("ledger", "findings")}
    fields["schema"] = fields.pop("schema_id")
    fields["findings"] = " ".join(finding.kind.value for finding in record.findings)
    return fields


def _cell_value(value: object) -> object:
    if isinstance(value, str):
        return str(value)  # an enumeration's member as plain text
    if isinstance(value, (tuple, list, dict, BaseModel)):
        return _JSON.encode(value)
    return value


def _remarks(name: str, run: Run) -> Iterator[str]:
    yield from (remark.replace(f"{run.folder}/", f"{name}/") for remark in run.remarks)
    for sentence in unfinished_cells(run.cells, run.requests, run.manifest.cells):
        yield f"{name}: {sentence}"


def _name(root: Path, folder: Path) -> str:
    return folder.relative_to(root).as_posix() if folder != root else folder.resolve().name


def _warned(tables: Tables) -> Tables:
    for remark in tables.remarks:
        warnings.warn(remark, DataWarning, stacklevel=3)
    return tables


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: cannot be written: {error.strerror or error}; choose another file")
