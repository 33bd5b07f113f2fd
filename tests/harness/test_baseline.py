"""Baselines: made of a run, without times, and every change against them is seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_run import FORGETFUL, SGLANG_16, VLLM, sample_run

from harness.baseline import accept, check, folder_name
from harness.cli import main
from harness.records import RequestRecord
from harness.statistics import Verdict
from harness.store import Run, load_run
from vocabulary.errors import UsageError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return sample_run(tmp_path_factory.mktemp("run"), [VLLM, SGLANG_16], ["changed"])


def accepted(run: Run, baselines: Path) -> Path:
    for each in check(run, baselines):
        accept(run, each.label, each.folder)
    return baselines


def test_there_is_none_until_one_is_accepted(run: Run, tmp_path: Path) -> None:
    assert [each.comparison for each in check(run, tmp_path)] == [None, None]
    found = check(run, accepted(run, tmp_path))
    assert [each.comparison and each.comparison.verdict for each in found] == [Verdict.PASS, Verdict.PASS]


def test_a_baseline_holds_no_times(run: Run, tmp_path: Path) -> None:
    folder = accepted(run, tmp_path) / folder_name(VLLM.label)
    lines = [line for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    records = [RequestRecord.model_validate_json(line) for line in lines]
    assert {(r.sent_ns, r.total_ns, r.ttft_ns, r.first_logprob) for r in records} == {(0, 0, None, None)}
    assert json.loads((folder / "run.json").read_text())["machine"] == {}
    asked = [r for r in run.requests if r.engine_label == VLLM.label and r.role == "probe"]
    assert [(r.hit_len, r.position_start, r.ledger) for r in records] == [
        (r.hit_len, r.position_start, r.ledger) for r in asked
    ]


def test_a_changed_hit_fails(run: Run, tmp_path: Path) -> None:
    baselines = accepted(run, tmp_path)
    first, *others = [r for r in run.requests if r.hit_len == 1024]
    worse = first.model_copy(update={"hit_len": 992})
    changed = Run(run.folder, run.manifest, run.cells, tuple(worse if r is first else r for r in run.requests))
    verdicts = {each.label: each.comparison and each.comparison.verdict for each in check(changed, baselines)}
    assert verdicts == {VLLM.label: Verdict.FAIL, SGLANG_16.label: Verdict.PASS}
    assert others


def test_accepting_replaces_the_old_one(run: Run, tmp_path: Path) -> None:
    baselines = accepted(run, tmp_path)
    (baselines / folder_name(VLLM.label) / "left over").write_text("")
    accepted(run, baselines)
    assert not (baselines / folder_name(VLLM.label) / "left over").exists()
    assert load_run(baselines / folder_name(VLLM.label)).requests


def test_another_workload_is_said_and_can_be_accepted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    baselines = accepted(run, tmp_path / "baselines")
    other = sample_run(tmp_path / "other", [VLLM], ["ladder"])
    (found,) = check(other, baselines)
    assert found.comparison is None
    assert found.unlike
    arguments = [str(other.folder), "--baselines", str(baselines)]
    assert command("check", arguments, monkeypatch) == 2
    assert "not comparable" in capsys.readouterr().out
    assert command("accept", arguments, monkeypatch) == 0
    assert command("check", arguments, monkeypatch) == 0


def test_a_run_without_any_cell_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    empty = sample_run(tmp_path / "run", [])
    assert command("check", [str(empty.folder), "--baselines", str(tmp_path)], monkeypatch) == 3


def command(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["hitparity", "baseline", name, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_nobody_accepts_findings_unseen(tmp_path: Path) -> None:
    forgetful = sample_run(tmp_path / "run", [FORGETFUL], ["changed"])
    with pytest.raises(UsageError, match="no baseline can be made"):
        accepted(forgetful, tmp_path / "baselines")
    assert not list((tmp_path / "baselines").glob("*"))
