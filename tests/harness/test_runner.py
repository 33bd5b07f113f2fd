"""A run through the command line: records on disk, exit codes, interruption and resumption, unwritable folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.records import CellStatus
from harness.store import Run, load_run
from vocabulary.errors import ExitCode, UsageError

EXPERIMENT = """
name = "e"
models = ["tiny-qwen3"]

[[engine]]
name = "law"
law = "vllm@0.32"
matrix = { block_size = [16, 32] }

[[workload]]
family = "changed"

[[workload]]
family = "repeat"
name = "ladder"
blocks = [16]
multiples = [1, 2, 3, 4, 5, 6, 7, 8]
"""
FIELDS = ("cell", "index", "label", "prompt_sha256", "hit_len", "position_start", "lcp_len", "ledger", "output_ids")


def hitparity(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


def only_run(results: Path) -> Run:
    (folder,) = (path.parent for path in results.glob("*/*/run.json"))
    return load_run(folder)


def content(run: Run) -> list[tuple[Any, ...]]:
    return [tuple(getattr(record, field) for field in FIELDS) for record in run.requests]


def test_a_run_writes_lines_manifests_and_a_report(experiment: Path, tmp_path: Path) -> None:
    done = hitparity("run", experiment, "--results", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path / "r")
    assert [cell.status for cell in run.cells] == [CellStatus.COMPLETE] * 4
    assert all(cell.valid and cell.requests for cell in run.cells)
    assert len(run.requests) == sum(cell.requests for cell in run.cells)
    line = json.loads((run.folder / run.cells[0].cell / "requests.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    named = "schema engine version fidelity prompt_len lcp_len hit_len position_start tail_len ttft_ns ledger"
    assert set(named.split()) <= set(line)
    assert line["schema"] == "hitparity.request/1"
    assert (run.folder / "report" / "report.md").is_file()
    assert "1024" in done.stdout


def test_dry_run_starts_and_writes_nothing(experiment: Path, tmp_path: Path) -> None:
    done = hitparity("run", experiment, "--results", tmp_path / "r", "--dry-run")
    assert done.returncode == 0
    assert "4 cells; nothing was started" in done.stdout
    assert not (tmp_path / "r").exists()


def test_interrupted_then_resumed_equals_undisturbed(experiment: Path, tmp_path: Path) -> None:
    undisturbed = hitparity("run", experiment, "--results", tmp_path / "u")
    assert undisturbed.returncode == 0
    child = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", str(experiment), "--results", str(tmp_path / "r")],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and sum(1 for _ in tmp_path.glob("r/e/*/*/cell.json")) < 1:
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=120)
    assert child.returncode == 130
    broken = only_run(tmp_path / "r")
    assert 0 < len(broken.requests) < len(only_run(tmp_path / "u").requests)
    resumed = hitparity("run", experiment, "--results", tmp_path / "r", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert content(only_run(tmp_path / "r")) == content(only_run(tmp_path / "u"))


def test_killed_in_mid_line_then_resumed(experiment: Path, tmp_path: Path) -> None:
    assert hitparity("run", experiment, "--results", tmp_path / "r").returncode == 0
    run = only_run(tmp_path / "r")
    whole = content(run)
    last = run.folder / run.cells[-1].cell
    (last / "cell.json").unlink()
    lines = (last / "requests.jsonl").read_bytes()
    (last / "requests.jsonl").write_bytes(lines[: len(lines) // 2])
    torn = load_run(run.folder)
    assert "torn" in torn.remarks[0]
    assert len(torn.requests) < len(whole)
    resumed = hitparity("run", experiment, "--results", tmp_path / "r", "--resume")
    assert resumed.returncode == 0
    torn_line = lines[: len(lines) // 2].count(b"\n") + 1
    assert f"line {torn_line} was torn" in resumed.stderr
    assert content(load_run(run.folder)) == whole
    assert lines.startswith(kept := (last / "requests.attempt-1.jsonl").read_bytes())
    assert kept.endswith(b"\n")


def test_resume_refuses_another_experiment_and_an_empty_folder(experiment: Path, tmp_path: Path) -> None:
    nothing = hitparity("run", experiment, "--results", tmp_path / "r", "--resume")
    assert nothing.returncode == 2
    assert "no run to resume" in nothing.stderr
    assert hitparity("run", experiment, "--results", tmp_path / "r").returncode == 0
    experiment.write_text(EXPERIMENT + "\n[checks]\ncontrol = false\n", encoding="utf-8")
    changed = hitparity("run", experiment, "--results", tmp_path / "r", "--resume")
    assert changed.returncode == 2
    assert "has changed since this run was made: checks.control was True, is False" in changed.stderr


def test_an_engine_that_cannot_start_leaves_the_others_alone(experiment: Path, tmp_path: Path) -> None:
    missing = '\n[[engine]]\nname = "llama.cpp"\nbinary = "/nonexistent/llama-server"\n'
    experiment.write_text(EXPERIMENT + missing, encoding="utf-8")
    done = hitparity("run", experiment, "--results", tmp_path / "r", "--only", "workload=changed")
    assert done.returncode == 4
    assert "/nonexistent/llama-server" in done.stderr
    assert "Traceback" not in done.stderr
    status = {cell.engine: cell.status for cell in only_run(tmp_path / "r").cells}
    assert status == {"law": CellStatus.COMPLETE, "llama.cpp": CellStatus.FAILED}


def test_a_missing_model_folder_and_one_with_other_weights(experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(EXPERIMENT.replace("tiny-qwen3", "my-model"), encoding="utf-8")
    absent = hitparity("run", experiment, "--results", tmp_path / "r")
    assert absent.returncode == 2
    assert "'my-model' is neither a folder nor one of" in absent.stderr
    assert hitparity("model", "make", "tiny-qwen3", tmp_path / "my-model").returncode == 0
    with (tmp_path / "my-model" / "model.gguf").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\x00\x00\x80\x3f")
    other = hitparity("run", experiment, "--results", tmp_path / "r")
    assert other.returncode == 2
    assert "model.gguf: is not the file that" in other.stderr
    assert "engines would run different models" in other.stderr


def test_results_that_cannot_be_written(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = hitparity("run", experiment, "--results", tmp_path / "file" / "r")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "--results DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_keeps_what_was_measured(experiment: Path, tmp_path: Path) -> None:
    limit = "import resource,sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); import signal;"
    limit += (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from harness.cli import main; sys.argv[0]='hitparity'; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", limit, "run", str(experiment), "--results", str(tmp_path / "r")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert only_run(tmp_path / "r").requests


def test_reading_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.json is missing"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="not a RunManifest"):
        load_run(tmp_path)
    done = hitparity("report", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("hitparity: ")


def test_strict_stops_at_the_first_unbacked_hit_and_keeps_its_line(tmp_path: Path) -> None:
    """Stock vLLM 0.23 with a hybrid and a drafter reports hits that no state backs."""
    path = tmp_path / "e.toml"
    path.write_text(
        """
name = "e"
models = ["tiny-qwen3"]

[[engine]]
name = "law"
law = "vllm@0.23"
options = { groups = ["full:32", "gdn:32"], method = "mtp", num_speculative_tokens = 1 }

[[workload]]
family = "repeat"
blocks = [32]
multiples = [2, 3]

[[workload]]
family = "changed"
""",
        encoding="utf-8",
    )
    kinds = {"loose": 1, "strict": 0}
    for results in kinds:
        arguments = ["--strict"] if results == "strict" else []
        done = hitparity("run", path, "--results", tmp_path / results, *arguments)
        assert done.returncode == ExitCode.FINDINGS, done.stderr
    loose, strict = (only_run(tmp_path / results) for results in kinds)
    assert [cell.status for cell in loose.cells] == [CellStatus.COMPLETE] * 2
    (stopped,) = strict.cells
    assert stopped.status is CellStatus.FAILED and "stopped by --strict" in stopped.why and "unbacked" in stopped.why
    assert [bool(record.findings) for record in strict.requests] == [False] * (len(strict.requests) - 1) + [True]
    assert len(strict.requests) < len(loose.requests)
