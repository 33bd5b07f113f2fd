"""What a second invocation may and may not do to a run."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from test_runner import EXPERIMENT, hitparity, only_run

from harness.experiment import load_experiment
from harness.plan import plan

TWO_LABELS = EXPERIMENT.replace("matrix = { block_size = [16, 32] }", 'label = "a b"') + (
    '\n[[engine]]\nname = "law"\nlaw = "sglang@0.5.23"\nlabel = "a-b"\n'
)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(TWO_LABELS, encoding="utf-8")
    return path


def test_a_filter_renames_no_cell(experiment: Path) -> None:
    loaded = load_experiment(experiment)
    everything = {c.id: c.engine_label for g in plan(loaded) for c in g.cells}
    for label in ("a b", "a-b"):
        for group in plan(loaded, [f"label={label}"]):
            assert all(everything[cell.id] == label for cell in group.cells)
    assert len({g.log_folder for g in plan(loaded)}) == 2


def test_resuming_with_a_wider_choice_shows_all_cells(experiment: Path, tmp_path: Path) -> None:
    results = ("--results", tmp_path / "r")
    assert hitparity("run", experiment, *results, "--only", "label=a-b").returncode == 0
    assert {cell.engine_label for cell in only_run(tmp_path / "r").cells} == {"a-b"}
    assert hitparity("run", experiment, *results, "--resume").returncode == 0
    run = only_run(tmp_path / "r")
    assert {cell.engine_label for cell in run.cells} == {"a b", "a-b"}
    assert {record.engine for record in run.requests} == {"vllm", "sglang"}


def test_the_exit_code_is_that_of_the_whole_run(experiment: Path, tmp_path: Path) -> None:
    assert hitparity("run", experiment, "--results", tmp_path / "r").returncode == 0
    run = only_run(tmp_path / "r")
    lines = (run.folder / run.cells[0].cell / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[-1]) | {"findings": [{"kind": "unexplained", "detail": "made up by the test"}]}
    (run.folder / run.cells[0].cell / "requests.jsonl").write_text(
        "\n".join([*lines[:-1], json.dumps(record)]) + "\n", encoding="utf-8"
    )
    assert hitparity("run", experiment, "--results", tmp_path / "r", "--resume").returncode == 1


def test_two_writers_of_one_run(experiment: Path, tmp_path: Path) -> None:
    assert hitparity("run", experiment, "--results", tmp_path / "r").returncode == 0
    run = only_run(tmp_path / "r")
    (run.folder / run.cells[0].cell / "cell.json").unlink()
    with (run.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = hitparity("run", experiment, "--results", tmp_path / "r", "--resume")
    assert second.returncode == 2
    assert "another process is writing" in second.stderr


def test_a_changed_document_is_not_resumed(experiment: Path, tmp_path: Path) -> None:
    workload = '\n[[workload]]\nfamily = "questions"\ndocument = "d.txt"\nquestions = ["why?"]\n'
    experiment.write_text(TWO_LABELS + workload, encoding="utf-8")
    missing = hitparity("run", experiment, "--results", tmp_path / "r")
    assert missing.returncode == 2
    assert "document 'd.txt' cannot be read" in missing.stderr
    assert not (tmp_path / "r").exists()
    (tmp_path / "d.txt").write_text("a short text", encoding="utf-8")
    assert hitparity("run", experiment, "--results", tmp_path / "r").returncode == 0
    (tmp_path / "d.txt").write_text("another text", encoding="utf-8")
    again = hitparity("run", experiment, "--results", tmp_path / "r", "--resume")
    assert again.returncode == 2
    assert "has changed since this run was made: a document" in again.stderr


def test_a_pool_too_small_for_the_prompt_is_a_sentence(experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(EXPERIMENT.replace("matrix =", "options = { num_blocks = 3 }\nmatrix ="), encoding="utf-8")
    done = hitparity("run", experiment, "--results", tmp_path / "r")
    assert done.returncode == 2
    assert "blocks wanted" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_workload_that_sends_nothing(experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(EXPERIMENT.replace("blocks = [16]", "blocks = []"), encoding="utf-8")
    done = hitparity("run", experiment, "--results", tmp_path / "r")
    assert done.returncode == 2
    assert "the workload sends nothing" in done.stderr
