from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sample_run import FORGETFUL, LLAMA_CPP, SILENT, VLLM, sample_run

from harness.data import DataWarning, cell_columns, load, load_cells, load_tables, request_columns, write_csv
from harness.records import Role
from harness.report_cli import report
from harness.store import Run, load_run
from vocabulary.errors import UsageError
from vocabulary.ledger import Cause

CAUSES = [f"{cause.value}_tokens" for cause in Cause]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("results") / "sample" / "one"
    return sample_run(folder, [VLLM, LLAMA_CPP, FORGETFUL, SILENT], ["changed", "chat"], failed=["vllm block_size=7"])


def rewritten(run: Run, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The first cell of a run, its request lines changed."""
    cell = run.manifest.cells[0]
    (folder / cell).mkdir(parents=True)
    manifest = json.loads((run.folder / "run.json").read_text()) | {"cells": [cell]}
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / cell / "cell.json").write_text((run.folder / cell / "cell.json").read_text())
    with (folder / cell / "requests.jsonl").open("w") as file:
        for line in (run.folder / cell / "requests.jsonl").read_text().splitlines():
            document = json.loads(line)
            change(document)
            file.write(json.dumps(document) + "\n")
    return folder


def test_a_row_per_request_with_the_documented_columns_and_types(run: Run) -> None:
    frame = load_tables(run.folder).requests
    assert len(frame) == len(run.requests)
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        column.name: column.dtype.split("[")[0] for column in request_columns()
    }
    assert frame["hit_len"].dtype == "Int64"
    assert frame["emulated"].dtype == "boolean"
    assert frame["first_logprob"].dtype == "Float64"


def test_causes_add_up_to_the_prompt_or_are_unknown(run: Run) -> None:
    frame = load_tables(run.folder).requests
    known = frame[frame["ledger"].notna()]
    assert (known[CAUSES].sum(axis=1) == known["prompt_len"]).all()
    assert not known[CAUSES].isna().any(axis=None)
    silent = frame[frame["engine_label"] == SILENT.label]
    assert silent[[*CAUSES, "hit_len", "ledger"]].isna().all(axis=None)
    assert (frame["findings_count"] == [len(r.findings) for r in run.requests]).all()


def test_a_row_per_planned_cell_with_sums_over_its_probes(run: Run) -> None:
    cells = load_tables(run.folder).cells.set_index("cell")
    assert list(cells.index) == list(run.manifest.cells)
    assert {*cells.columns, "cell"} == {column.name for column in cell_columns()}
    first = run.manifest.cells[0]
    probes = [r for r in run.requests if r.cell == first and r.role is Role.PROBE]
    assert cells.loc[first, "probes"] == len(probes)
    assert cells.loc[first, "reused_tokens"] == sum(r.by_cause().get(Cause.REUSED, 0) for r in probes)
    assert cells.loc[first, "granule"] == 32
    failed = cells[cells["status"] == "failed"]
    assert list(failed["engine_label"]) == ["vllm block_size=7"]
    assert failed["reused_tokens"].isna().all()


def test_what_is_missing_is_warned_about_and_kept_with_the_table(run: Run) -> None:
    with pytest.warns(DataWarning, match="vllm block_size=7, changed on tiny-qwen3: failed after 0 requests"):
        frame = load(run.folder)
    assert len(frame.attrs["remarks"]) == 1
    with pytest.warns(DataWarning):
        assert load_cells(run.folder).attrs["remarks"] == frame.attrs["remarks"]


def test_a_killed_run_is_read_and_said(run: Run, tmp_path: Path) -> None:
    folder = rewritten(run, tmp_path / "run", lambda document: None)
    cell = run.manifest.cells[0]
    (folder / cell / "cell.json").unlink()
    with (folder / cell / "requests.jsonl").open("a") as file:
        file.write('{"schema": "hitparity.req')
    tables = load_tables(folder)
    assert any("is torn" in remark for remark in tables.remarks)
    assert any("killed after" in remark for remark in tables.remarks)
    assert tables.cells["status"].isna().all()
    assert len(tables.requests) == sum(r.cell == cell for r in run.requests)


def test_an_older_schema_is_read_with_the_unknown_left_open(run: Run, tmp_path: Path) -> None:
    def older(document: dict[str, Any]) -> None:
        document["schema"] = "hitparity.request/0"
        document["colour_of_the_server"] = "blue"
        del document["junction"]

    tables = load_tables(rewritten(run, tmp_path / "run", older))
    (remark,) = tables.remarks
    assert "hitparity.request/0" in remark
    assert "junction (unknown)" in remark
    assert "colour_of_the_server left out" in remark
    assert tables.requests["junction"].isna().all()
    assert (tables.requests["schema"] == "hitparity.request/1").all()


def test_a_missing_field_that_cannot_be_unknown_is_refused(run: Run, tmp_path: Path) -> None:
    def lengthless(document: dict[str, Any]) -> None:
        document["schema"] = "hitparity.request/0"
        del document["prompt_len"]

    with pytest.raises(UsageError, match="line 1 is not a request record: prompt_len"):
        load_tables(rewritten(run, tmp_path / "run", lengthless))


def test_an_unknown_field_of_todays_schema_is_refused(run: Run, tmp_path: Path) -> None:
    def mistyped(document: dict[str, Any]) -> None:
        document["hit_length"] = 1

    with pytest.raises(UsageError, match="line 1 is not a request record: hit_length"):
        load_tables(rewritten(run, tmp_path / "run", mistyped))


def test_a_later_schema_is_refused_with_the_remedy(run: Run, tmp_path: Path) -> None:
    def later(document: dict[str, Any]) -> None:
        document["schema"] = "hitparity.request/2"

    with pytest.raises(UsageError, match="install a later hitparity"):
        load_tables(rewritten(run, tmp_path / "run", later))


def test_many_runs_are_one_table(run: Run, tmp_path: Path) -> None:
    for name in ("sample/b", "sample/a", "other/c"):
        sample_run(tmp_path / name, [VLLM], ["changed"])
    frame = load_tables(tmp_path).requests
    assert list(frame["run"].unique()) == ["other/c", "sample/a", "sample/b"]
    assert len(frame) == 3 * len(load_run(tmp_path / "sample" / "a").requests)
    assert list(load_tables(tmp_path / "sample").cells["run"]) == ["a", "b"]


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        load(tmp_path)


def test_a_run_without_requests_has_the_same_columns(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [], ["changed"], failed=["vllm"])
    frame = load_tables(run.folder).requests
    assert len(frame) == 0
    assert list(frame.columns) == [column.name for column in request_columns()]


def test_csv_gives_the_table_back_and_the_same_bytes(run: Run, tmp_path: Path) -> None:
    frame = load_tables(run.folder).requests
    first, second = (write_csv(frame, tmp_path / name).read_bytes() for name in ("a.csv", "b.csv"))
    assert first == second
    types = {column.name: column.dtype for column in request_columns()}
    back = pd.read_csv(tmp_path / "a.csv", dtype=types, keep_default_na=False, na_values={c: [""] for c in types})
    numbers = [name for name, dtype in types.items() if dtype == "Int64"]
    pd.testing.assert_frame_equal(back[numbers], frame[numbers])
    assert list(back["ledger"].fillna("")) == list(frame["ledger"].fillna(""))


def test_parquet_gives_the_table_back(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow: pip install 'hitparity[parquet]'")
    from harness.data import write_parquet

    frame = load_tables(run.folder).requests
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = pd.read_parquet(write_parquet(frame, tmp_path / "a.parquet"))
    numbers = [column.name for column in request_columns() if column.dtype in ("Int64", "boolean", "Float64")]
    pd.testing.assert_frame_equal(back[numbers], frame[numbers], check_index_type=False)


def test_lost_and_repeated_requests_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sample_run(folder, [VLLM], ["changed", "ladder"])
    first, second = (folder / "cell-0" / "requests.jsonl", folder / "cell-1" / "requests.jsonl")
    first.unlink()
    lines = second.read_text().splitlines(keepends=True)
    second.write_text("".join([*lines, lines[0]]))
    remarks = load_run(folder).remarks
    assert len(remarks) == 2
    assert "cell-0/requests.jsonl: is missing, with all of the" in remarks[0]
    assert f"line {len(lines) + 1} repeats request" in remarks[1]


@pytest.mark.parametrize("option", ["--csv", "--parquet"])
def test_a_table_under_another_suffix_is_refused(option: str, tmp_path: Path) -> None:
    sample_run(tmp_path / "run", [VLLM], ["changed"])
    with pytest.raises(UsageError, match=f"ends in .{option[2:]}"):
        report(tmp_path / "run", **{option[2:]: tmp_path / "table.txt"})  # type: ignore[arg-type]
    assert not (tmp_path / "table.txt").exists()
