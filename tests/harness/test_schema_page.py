from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

import pytest
from pydantic import BaseModel
from sample_run import VLLM, sample_run

from harness.records import RequestRecord
from harness.schema_page import RECORDS, VALUES, fields_of, schema_json, schema_page, unit_of, write_schema
from vocabulary.ledger import Interval

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "text"), [("schema.md", schema_page()), ("schema.json", schema_json())])
def test_the_committed_files_are_up_to_date(name: str, text: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == text, "run `python -m harness.schema_page docs`"


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_has_a_meaning_and_a_row(record: type[BaseModel] | type[Interval]) -> None:
    section = schema_page().split(f"\n## {record.__name__}\n")[1].split("\n## ")[0]
    for name, _, meaning in fields_of(record):
        assert meaning, f"{record.__name__}.{name} has no docstring"
        assert f"| `{name}` |" in section


@pytest.mark.parametrize("values", VALUES)
def test_every_value_is_listed(values: type[StrEnum]) -> None:
    section = schema_page().split(f"\n## {values.__name__}\n")[1].split("\n## ")[0]
    listed = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert listed == [value.value for value in values]


def test_types_and_units_are_told() -> None:
    page = schema_page()
    assert "| `hit_len` | integer or null | tokens | Tokens the engine says it took from its cache. |" in page
    assert "| `steps` | array of [integer, integer] or null | position |" in page
    assert "| `ledger` | array of [Interval](#interval) |" in page
    assert "| `schema` | `hitparity.request/1` |" in page
    assert (unit_of("ttft_ns"), unit_of("lcp_len"), unit_of("seed")) == ("ns", "tokens", "")


def test_a_written_line_has_exactly_the_fields_of_the_schema(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM], ["changed"])
    line = json.loads((tmp_path / run.manifest.cells[0] / "requests.jsonl").read_text(encoding="utf-8").splitlines()[0])
    schema = json.loads(schema_json())["hitparity.request/1"]
    assert set(line) == set(schema["properties"])
    assert set(schema["required"]) <= set(line)
    assert schema["properties"]["hit_len"]["description"] == RequestRecord.model_fields["hit_len"].description


def test_writing_gives_the_same_bytes(tmp_path: Path) -> None:
    assert [path.read_text(encoding="utf-8") for path in write_schema(tmp_path)] == [schema_page(), schema_json()]
