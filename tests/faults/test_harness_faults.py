"""Faults of the harness and of what it writes to: signals, kills, disks, two writers, a stepping clock."""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from injecting import Quiet, experiment_file, left_over, run, shown

from harness.records import CellStatus
from harness.runner import Runner
from harness.store import Run, RunLock, load_run
from vocabulary.errors import ExitCode, UsageError

ROUNDS = int(os.environ.get("HITPARITY_FAULT_ROUNDS", "3"))
"""Random moments at which the harness is ended; set it higher for a campaign."""
SEED = int(os.environ.get("HITPARITY_FAULT_SEED", str(time.time_ns())))
STABLE = ("cell", "index", "label", "prompt_sha256", "hit_len", "position_start", "lcp_len", "ledger", "output_ids")
FREE = ExitCode.CLEAN
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24
Preexec = Callable[[], None] | None


def fault(what: str, message: str, code: ExitCode, where: str = "harness") -> pytest.MarkDecorator:
    return pytest.mark.fault(what, where, message, int(code))


def told(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Message and code of the test's own mark."""
    mark = request.node.get_closest_marker("fault")
    return mark.args[2], mark.args[3]


def harness(path: Path, results: Path, *more: str, preexec: Preexec = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harness", "run", str(path), "--results", str(results), *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes, preexec_fn=preexec)  # noqa: PLW1509


def ended(child: subprocess.Popen[str]) -> tuple[int, str]:
    stderr = child.communicate(timeout=300)[1]
    assert "Traceback" not in stderr, stderr
    return child.returncode, stderr


def until(what: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline and child.poll() is None, child.communicate()
        time.sleep(0.01)


def in_flight(folder: Path) -> bool:
    return any("in flight" in log.read_text(encoding="utf-8") for log in folder.glob("r/e/*/engines/*/engine.log"))


def only_run(results: Path) -> Run:
    (path,) = results.glob("e/*/run.json")
    return load_run(path.parent)


def content(done: Run) -> list[tuple[Any, ...]]:
    return [tuple(getattr(record, name) for name in STABLE) for record in done.requests]


def answered(folder: Path) -> int:
    return len((folder / "answered").read_text(encoding="utf-8").splitlines())


@fault("Ctrl-C in the first moment", "interrupted before anything was begun", ExitCode.INTERRUPTED)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_is_imported(
    number: signal.Signals, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    child = harness(experiment_file(tmp_path, "llama.cpp", ""), tmp_path / "r")

    def prepared() -> bool:
        caught = next(line for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if "SigCgt" in line)
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    until(prepared, child)
    child.send_signal(number)
    code, stderr = ended(child)
    assert (stderr.strip(), code) == (f"hitparity: {told(request)[0]}", told(request)[1])
    assert not (tmp_path / "r").exists()


@fault("Ctrl-C or SIGTERM once", "stopping when the request in flight is written", ExitCode.INTERRUPTED)
def test_one_signal_waits_for_the_request_in_flight(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    child = harness(experiment_file(tmp_path, "sglang", "slow"), tmp_path / "r")
    until(lambda: in_flight(tmp_path), child)
    child.send_signal(signal.SIGTERM)
    code, stderr = ended(child)
    assert shown(told(request)[0], stderr) and code == told(request)[1]
    done = only_run(tmp_path / "r")
    assert len(done.requests) == answered(tmp_path) == 6
    assert [cell.status for cell in done.cells] == [CellStatus.INTERRUPTED]
    assert not left_over(tmp_path)


@fault("Ctrl-C twice", "stopping when the request in flight is written...stopping", ExitCode.INTERRUPTED)
def test_two_signals_stop_now(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    child = harness(experiment_file(tmp_path, "vllm", "hang_in_prefill", request_timeout_s=600), tmp_path / "r")
    until(lambda: in_flight(tmp_path), child)
    child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    code, stderr = ended(child)
    assert shown(told(request)[0], stderr) and code == told(request)[1]
    assert len(only_run(tmp_path / "r").requests) == answered(tmp_path) == 5
    assert not left_over(tmp_path)


@fault("harness killed with a request in flight, an engine's child deaf to SIGTERM", "run again from its beginning; "
       "5 lines of the broken attempt are in requests.attempt-1.jsonl", FREE)  # fmt: skip
def test_a_killed_harness_leaves_lines_and_no_engine(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = experiment_file(tmp_path, "llama.cpp", "hang_in_prefill", request_timeout_s=600)
    child = harness(path, tmp_path / "r")
    until(lambda: in_flight(tmp_path), child)
    child.kill()
    child.communicate()
    assert not left_over(tmp_path)
    assert len(only_run(tmp_path / "r").requests) == answered(tmp_path) == 5
    path.write_text(path.read_text().replace("hang_in_prefill", ""), encoding="utf-8")
    (manifest,) = tmp_path.glob("r/e/*/run.json")  # the environment's values are part of the experiment
    fresh, _ = run(path, tmp_path / "u")
    digest = json.loads((fresh / "run.json").read_text())["experiment_digest"]
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"experiment_digest": digest}))
    progress = Quiet()
    folder, code = run(path, tmp_path / "r", resume=True, progress=progress)
    assert (code, progress.remarks) == (told(request)[1], [told(request)[0]])
    assert content(load_run(folder)) == content(load_run(fresh))


@fault("harness ended at random moments by SIGINT, SIGTERM or SIGKILL, then resumed", "", FREE)
def test_ended_at_random_then_resumed_equals_undisturbed(tmp_path: Path) -> None:
    path, choose = experiment_file(tmp_path, "llama.cpp", ""), random.Random(SEED)
    begin = time.monotonic()
    undisturbed = harness(path, tmp_path / "u")
    assert ended(undisturbed)[0] == FREE
    lasts = time.monotonic() - begin
    expected = content(only_run(tmp_path / "u"))
    for number in range(ROUNDS):
        results = tmp_path / f"r{number}"
        sort, moment = choose.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)), choose.uniform(0.2, 1) * lasts
        child = harness(path, results)
        try:
            child.wait(moment)
        except subprocess.TimeoutExpired:
            child.send_signal(sort)
        code, stderr = ended(child)
        assert code in (FREE, ExitCode.INTERRUPTED, -signal.SIGKILL), (SEED, number, stderr)
        assert not left_over(tmp_path), (SEED, number)
        begun = bool(list(results.glob("e/*/run.json")))
        folder, code = run(path, results, resume=begun)
        assert code == FREE
        assert content(load_run(folder)) == expected, (SEED, number, sort, moment)
        assert not list(results.glob("**/.*.json.*"))


@fault("last line torn, or zeros behind it", "line ... was torn by the end of the run and is dropped", FREE, "results")
@pytest.mark.parametrize("tail", [b'{"schema": "hitparity.req', b"\0" * 100])
def test_a_torn_line_is_said_and_dropped(tail: bytes, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = experiment_file(tmp_path, "worker", "")
    folder, _ = run(path, tmp_path / "r")
    whole = content(load_run(folder))
    broken = folder / load_run(folder).cells[0].cell / "requests.jsonl"
    lines = broken.read_bytes()
    broken.write_bytes(lines + tail)  # behind a manifest that says complete: power was lost before the fsync
    progress = Quiet()
    _, code = run(path, tmp_path / "r", resume=True, progress=progress)
    assert shown(told(request)[0], progress.remarks[0]) and code == told(request)[1]
    assert content(load_run(folder)) == whole
    assert broken.with_name("requests.attempt-1.jsonl").read_bytes() == lines


@fault("lines missing behind a complete manifest", "run again from its beginning", FREE, "results")
def test_a_complete_cell_that_lost_lines_is_run_again(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = experiment_file(tmp_path, "worker", "")
    folder, _ = run(path, tmp_path / "r")
    whole = content(load_run(folder))
    broken = folder / load_run(folder).cells[1].cell / "requests.jsonl"
    broken.write_bytes(b"".join(broken.read_bytes().splitlines(keepends=True)[:-1]))
    progress = Quiet()
    _, code = run(path, tmp_path / "r", resume=True, progress=progress)
    assert shown(told(request)[0], progress.remarks[0]) and code == told(request)[1]
    assert content(load_run(folder)) == whole


def limited(size: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    return limit


@fault("disk full", "cannot be written: File too large; what was measured so far is kept", ExitCode.USAGE, "results")
@pytest.mark.parametrize("size", [600, 9000])
def test_a_full_disk(size: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = experiment_file(tmp_path, "worker", "")
    code, stderr = ended(harness(path, tmp_path / "r", preexec=limited(size)))
    assert shown(told(request)[0], stderr) and code == told(request)[1], stderr
    assert not left_over(tmp_path)
    if runs := list(tmp_path.glob("r/e/*/run.json")):
        kept = load_run(runs[0].parent)
        assert len([r for r in kept.requests if r.engine_label == "faulty"]) <= answered(tmp_path)
        folder, code = run(path, tmp_path / "r", resume=True)
        assert code == FREE and {cell.status for cell in load_run(folder).cells} == {CellStatus.COMPLETE}


@fault("results read-only", "cannot be written: Permission denied", ExitCode.USAGE, "results")
def test_read_only_results(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "r").mkdir(mode=0o555)

    def humble() -> None:  # root writes everywhere, unless it gives up the right to
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)

    child = harness(experiment_file(tmp_path, "worker", ""), tmp_path / "r", preexec=humble)
    code, stderr = ended(child)
    if code == FREE and os.geteuid() == 0:
        pytest.skip("this root may not give up its right to write everywhere")
    assert shown(told(request)[0], stderr) and code == told(request)[1]
    assert not (tmp_path / "answered").exists()


@fault("two runs at once below one results folder", "", FREE, "results")
def test_two_new_runs_at_once_are_two_runs(tmp_path: Path) -> None:
    path = experiment_file(tmp_path, "llama.cpp", "")
    other = harness(path, tmp_path / "r")
    until(lambda: bool(list(tmp_path.glob("r/e/*/run.json"))), other)
    assert run(path, tmp_path / "r")[1] == FREE
    assert ended(other)[0] == FREE
    first, second = (load_run(each.parent) for each in tmp_path.glob("r/e/*/run.json"))
    assert content(first) == content(second)


@fault("a run resumed while it still runs", "another process is writing into this run", ExitCode.USAGE, "results")
def test_a_run_that_still_runs_is_not_resumed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = experiment_file(tmp_path, "worker", "")
    folder, _ = run(path, tmp_path / "r")
    before = sorted((each, each.read_bytes()) for each in folder.rglob("*") if each.is_file())
    with RunLock(folder), pytest.raises(UsageError) as caught:
        run(path, tmp_path / "r", resume=True)
    assert shown(told(request)[0], str(caught.value)) and caught.value.exit_code == told(request)[1]
    assert sorted((each, each.read_bytes()) for each in folder.rglob("*") if each.is_file()) == before


def changed_code(folder: Path, path: Path) -> None:
    edit(folder / "run.json", hitparity="0.1.0+0badc0de")


def changed_experiment(folder: Path, path: Path) -> None:
    path.write_text(path.read_text().replace("shared = 64", "shared = 80"), encoding="utf-8")


def changed_model(folder: Path, path: Path) -> None:
    edit(folder / load_run(folder).cells[0].cell / "cell.json", model_fingerprint="f" * 64)


def edit(manifest: Path, **fields: object) -> None:
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | fields), encoding="utf-8")


CHANGES = (
    (changed_code, "resumed by another hitparity", "this run was made by hitparity 0.1.0+0badc0de, this is"),
    (changed_experiment, "resumed with another experiment", "workload[0].shared was 64, is 80"),
    (changed_model, "resumed with other weights", "model 'tiny-qwen3' has other weights than when this run began"),
)


@pytest.mark.parametrize(
    "change", [pytest.param(change, marks=fault(*words, ExitCode.USAGE)) for change, *words in CHANGES]
)
def test_what_has_changed_is_said_and_not_resumed(
    change: Callable[[Path, Path], None], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = experiment_file(tmp_path, "worker", "")
    folder, _ = run(path, tmp_path / "r")
    change(folder, path)
    answers = answered(tmp_path)
    with pytest.raises(UsageError) as caught:
        run(path, tmp_path / "r", resume=True)
    assert shown(told(request)[0], str(caught.value)) and caught.value.exit_code == told(request)[1]
    assert "run without --resume" in str(caught.value)
    assert answered(tmp_path) == answers


@fault("resumed with another engine version", "version is '0.5.23' now and was '0.5.22' when ... was measured",
       ExitCode.USAGE)  # fmt: skip
def test_an_engine_of_another_version_is_not_mixed_in(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = experiment_file(tmp_path, "sglang", "")
    path.write_text(path.read_text() + '\n[[workload]]\nfamily = "changed"\nname = "again"\nshared = 32\n')
    folder, _ = run(path, tmp_path / "r")
    first, second = (cell for cell in load_run(folder).cells if cell.engine_label == "faulty")
    edit(folder / first.cell / "cell.json", facts=dict(first.facts or {}) | {"version": "0.5.22"})
    (folder / second.cell / "cell.json").unlink()
    _, code = run(path, tmp_path / "r", resume=True)
    refused = load_run(folder).cells[1]
    assert refused.status is CellStatus.FAILED
    assert shown(told(request)[0], refused.why) and code == told(request)[1]
    assert not left_over(tmp_path)


@fault("the clock stepped back between two runs", "", FREE)
def test_a_clock_that_steps_back_hides_no_run(tmp_path: Path) -> None:
    path = experiment_file(tmp_path, "worker", "")
    first, _ = run(path, tmp_path / "r")
    later = first.rename(first.with_name("20991231T235959Z"))
    second, _ = run(path, tmp_path / "r")
    assert second.name > later.name
    (second / load_run(second).cells[0].cell / "cell.json").unlink()
    assert run(path, tmp_path / "r", resume=True) == (second, FREE)


@fault("an error inside hitparity", "an error inside hitparity, please report it: ... has the traceback",
       ExitCode.UNAVAILABLE)  # fmt: skip
def test_an_error_of_our_own_costs_one_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    whole = Runner._run_cell

    def broken(self: Runner, group: Any, *arguments: Any) -> bool:
        if group.engine_label == "faulty":
            raise ZeroDivisionError
        return whole(self, group, *arguments)

    monkeypatch.setattr(Runner, "_run_cell", broken)
    folder, code = run(experiment_file(tmp_path, "llama.cpp", ""), tmp_path / "r")
    faulty, neighbour = load_run(folder).cells
    assert shown(told(request)[0], faulty.why) and code == told(request)[1]
    assert neighbour.status is CellStatus.COMPLETE
    assert not left_over(tmp_path)
