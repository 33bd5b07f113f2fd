"""`docs/schema.md` and `docs/schema.json`, written from the records.

python -m harness.schema_page docs
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from inspect import getdoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter

from harness.data import Column, cell_columns, request_columns
from harness.listing import enum_meanings
from harness.records import (
    CellManifest,
    CellStatus,
    Finding,
    FindingKind,
    RequestRecord,
    Role,
    RunManifest,
    json_schemas,
)
from vocabulary.engine import Fidelity, Mode
from vocabulary.ledger import Cause, Interval

RECORDS: tuple[type[BaseModel] | type[Interval], ...] = (RequestRecord, Interval, Finding, CellManifest, RunManifest)
VALUES: tuple[type[StrEnum], ...] = (Cause, FindingKind, Role, CellStatus, Mode, Fidelity)
_UNITS = {"_len": "tokens", "_tokens": "tokens", "_ns": "ns", "_logprob": "nats"}
_POSITIONS = {"start", "end", "position_start", "expected_position_start", "junction", "steps"}
_NAMES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    NoneType: "null",
}


def schema_page() -> str:
    """The page: every record's fields with type, unit and meaning, then every enumerated value."""
    parts = [
        "# Records",
        "Written from `harness/records.py` by `python -m harness.schema_page docs`; do not edit. `schema.json` beside "
        "this page holds the same as JSON Schema.",
        "A run folder holds `run.json`, and for each cell a folder with `cell.json` and `requests.jsonl`, one request "
        "a line. Lengths and positions are in tokens, intervals are half-open, and `null` means that it is not known.",
    ]
    for record in RECORDS:
        fields = [(f"`{name}`", _type(kind), unit_of(name), meaning) for name, kind, meaning in fields_of(record)]
        parts += [f"## {record.__name__}", getdoc(record) or "", _table(("field", "type", "unit", "meaning"), *fields)]
    for title, function, columns in (("requests", "load", request_columns()), ("cells", "load_cells", cell_columns())):
        parts += [
            f"## Table of {title}",
            f"Columns of `harness.data.{function}(path)`, and of the CSV and Parquet files made from it; unknown is "
            "`<NA>` in pandas, an empty field in CSV and null in Parquet.",
            _columns(columns),
        ]
    for values in VALUES:
        meanings = [(f"`{value}`", meaning) for value, meaning in enum_meanings(values).items()]
        parts += [f"## {values.__name__}", getdoc(values) or "", _table(("value", "meaning"), *meanings)]
    return "\n\n".join(parts) + "\n"


def fields_of(record: type[BaseModel] | type[Interval]) -> list[tuple[str, Any, str]]:
    """Name, type and meaning of each."""
    if issubclass(record, BaseModel):
        fields = record.model_fields.items()
        return [(field.alias or name, field.annotation, field.description or "") for name, field in fields]
    kinds, properties = get_type_hints(record), TypeAdapter(record).json_schema()["properties"]
    return [(name, kinds[name], said["description"]) for name, said in properties.items()]


def schema_json() -> str:
    """All JSON Schemas by schema name, as one JSON document."""
    return json.dumps(json_schemas(), indent=1, sort_keys=True) + "\n"


def write_schema(folder: Path) -> list[Path]:
    """Write `schema.md` and `schema.json` into a folder."""
    paths = [folder / "schema.md", folder / "schema.json"]
    for path, text in zip(paths, (schema_page(), schema_json()), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def unit_of(field: str) -> str:
    """The unit that a field's name says; empty where it has none."""
    if field in _POSITIONS:
        return "position"
    return next((unit for suffix, unit in _UNITS.items() if field.endswith(suffix)), "")


def _columns(columns: tuple[Column, ...]) -> str:
    rows = [(f"`{c.name}`", c.dtype.split("[")[0], unit_of(c.name), c.meaning) for c in columns]
    return _table(("column", "type", "unit", "meaning"), *rows)


def _type(annotation: Any) -> str:
    """A type in JSON's words; our own types link to their section."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(_type(argument) for argument in arguments)
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"[{', '.join(_type(argument) for argument in arguments)}]"
    if origin is tuple:
        return f"array of {_type(arguments[0])}"
    return _NAMES.get(origin) or f"[{annotation.__name__}](#{annotation.__name__.lower()})"


def _table(*lines: tuple[str, ...]) -> str:
    head, *rows = (" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in (head, " | ".join("---" for _ in lines[0]), *rows))


if __name__ == "__main__":
    write_schema(Path(sys.argv[1]))
