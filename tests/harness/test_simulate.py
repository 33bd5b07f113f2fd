"""`hitparity simulate`: cells, sweeps, resuming, Ray; results against the laws themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.simulate.cell import REQUESTS_FILE, RESULT_FILE, run_job
from harness.simulate.gains import variants
from harness.simulate.job import CellResult, Job
from harness.simulate.numbering import Numbering
from harness.simulate.sweep import Sweep, open_sweep, run_local
from harness.simulate.trace_file import TraceFile
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest
from vocabulary.errors import HitparityError, UsageError
from vocabulary.ledger import Cause
from workloads.traces.generate import Traffic, generate
from workloads.traces.mooncake import Mooncake
from workloads.traces.token_form import TokenForm
from workloads.traces.write import write_trace

SMALL = Traffic(requests=150, seed=3, mean_len=3000)
VLLM = {"block_size": 16, "num_blocks": 2500}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    path = tmp_path_factory.mktemp("trace") / "small.jsonl"
    write_trace(generate(SMALL), path, "mooncake", 512)
    return TraceFile(path=path)


class Silent:
    """A watcher that keeps what it was told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, bool]] = []

    def moved(self, counts: Mapping[str, int]) -> None:
        pass

    def ended(self, job: Job, result: CellResult | None, why: str | None) -> None:
        self.said.append((job.cell, result is not None))


@pytest.mark.parametrize("outputs", [False, True])
def test_a_cell_books_what_the_law_says_about_the_tokens(trace: TraceFile, tmp_path: Path, outputs: bool) -> None:
    job = Job(trace=trace, law="vllm@0.32", options=VLLM, outputs=outputs)
    result = run_job(job, tmp_path / "cell")
    law, form = make_law("vllm@0.32", VLLM), TokenForm(1 << 20)
    expected: dict[Cause, int] = {}
    rows = pq.read_table(tmp_path / "cell" / REQUESTS_FILE).to_pylist()
    for request, row in zip(Mooncake(trace.path), rows, strict=True):
        count = max(request.output_len, 1) if outputs else 1
        sent = TokenRequest(request_id=str(request.line), ids=tuple(form.ids(request).tolist()), max_tokens=count)
        expectation = law.send(sent)
        law.finish(sent, ((1 << 20) + request.line,) * count)
        ledger = expectation.ledger
        assert row["hit_len"] == expectation.hit_len
        assert row["ledger_ends"] == [i.end for i in ledger.intervals]
        assert row["ledger_causes"] == [i.cause.value for i in ledger.intervals]
        for cause, tokens in ledger.by_cause().items():
            expected[cause] = expected.get(cause, 0) + tokens
    assert result.chained
    assert result.totals.by_cause == expected
    assert Cause.EVICTED in expected and expected[Cause.REUSED] > 0
    assert sum(bucket.requests for bucket in result.buckets) == result.totals.requests == len(rows)


def test_a_law_that_compares_tokens_gets_tokens(trace: TraceFile, tmp_path: Path) -> None:
    small = replace(trace, divide=32)
    blocks = run_job(Job(trace=small, law="llama.cpp"), tmp_path / "blocks")
    tokens = run_job(Job(trace=small, law="llama.cpp", options={"n_cache_reuse": 200}), tmp_path / "tokens")
    assert blocks.chained and not tokens.chained
    assert blocks.totals == tokens.totals


def test_refused_requests_are_counted_and_the_rest_is_served(trace: TraceFile, tmp_path: Path) -> None:
    for law, options in (("vllm@0.32", {"num_blocks": 200}), ("sglang@0.5.23", {"max_total_tokens": 3000})):
        result = run_job(Job(trace=trace, law=law, options=options), tmp_path / law)
        totals = result.totals
        assert 0 < totals.refused < SMALL.requests == totals.refused + totals.requests
        assert result.first_refusal is not None
        assert result.first_refusal.startswith("line ")
        assert totals.prompt_tokens == sum(totals.by_cause.values())


def test_buckets_follow_arrival(trace: TraceFile, tmp_path: Path) -> None:
    result = run_job(Job(trace=trace, law="llama.cpp", bucket_s=10), tmp_path / "cell", requests=False)
    arrivals = [request.arrival_ns for request in Mooncake(trace.path)]
    counted = dict.fromkeys((int(a) // 10**10 * 10 for a in arrivals if a is not None), 0)
    for arrival in arrivals:
        assert arrival is not None
        counted[arrival // 10**10 * 10] += 1
    assert {bucket.start: bucket.requests for bucket in result.buckets} == counted
    assert not (tmp_path / "cell" / REQUESTS_FILE).exists()


def test_a_sweep_in_processes_equals_one_by_one_and_is_resumed(trace: TraceFile, tmp_path: Path) -> None:
    jobs = [Job(trace=trace, law="vllm@0.32", options={"num_blocks": n}) for n in (1500, 2500)]
    alone, together = (open_sweep(tmp_path / name, jobs, resume=False) for name in ("alone", "together"))
    assert not run_local(alone, Silent(), workers=1)
    watcher = Silent()
    assert not run_local(together, watcher, workers=2)
    assert sorted(watcher.said) == sorted((job.cell, True) for job in jobs)
    assert alone.done() == together.done()
    for job in jobs:
        assert_same_files(alone, together, job)
    (together.folder / jobs[1].cell / RESULT_FILE).unlink()
    again = open_sweep(tmp_path / "together", jobs, resume=True)
    assert again.folder == together.folder
    assert [job.cell for job in again.left()] == [jobs[1].cell]
    assert not run_local(again, Silent(), workers=1)
    assert again.done() == alone.done()
    with trace.path.open("a") as file:
        file.write("\n")
    try:
        with pytest.raises(UsageError, match="has changed since"):
            open_sweep(tmp_path / "together", jobs, resume=True)
    finally:
        os.truncate(trace.path, trace.path.stat().st_size - 1)


def assert_same_files(one: Sweep, other: Sweep, job: Job) -> None:
    for name in (RESULT_FILE, REQUESTS_FILE):
        assert (one.folder / job.cell / name).read_bytes() == (other.folder / job.cell / name).read_bytes()


def test_a_lost_ray_workers_cell_is_run_again(
    trace: TraceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (hitparity[ray])")
    from harness.simulate.on_ray import run_on_ray

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    jobs = [Job(trace=trace, law="vllm@0.32", options={"num_blocks": n}) for n in (1500, 2500)]
    local, remote = (open_sweep(tmp_path / name, jobs, resume=False) for name in ("local", "remote"))
    assert not run_local(local, Silent(), workers=1)
    killed: list[int] = []
    stop = threading.Event()

    def kill_one() -> None:
        while not killed and not stop.is_set():
            killed.extend(kill_a_task("_in_task"))
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one)
    killer.start()
    watcher = Silent()
    try:
        failures = run_on_ray(remote, watcher, None)
    finally:
        stop.set()
        killer.join()
    assert killed, "no worker was seen at work"
    assert not failures
    assert remote.done() == local.done()
    for job in jobs:
        assert_same_files(local, remote, job)


def kill_a_task(name: str) -> list[int]:
    """Kill one child process that Ray has named after a running task."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    parents = {int(row[0]): int(row[1]) for row in rows}
    for row in rows:
        pid = int(row[0])
        if row[2].startswith("ray::") and name in row[2] and descends(pid, os.getpid(), parents):
            os.kill(pid, signal.SIGKILL)
            return [pid]
    return []


def descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def test_variants_change_one_thing_and_keep_the_pools_tokens() -> None:
    base = Job(trace=TraceFile(path=Path("x")), law="vllm@0.32", options={"block_size": 16, "num_blocks": 1000})
    made = {job.change: job for job in variants(base)}
    assert made["block_size = 64"].options == {"block_size": 64, "num_blocks": 250}
    assert made["num_blocks = 2000"].options == {"block_size": 16, "num_blocks": 2000}
    assert "num_speculative_tokens" in made["with an MTP drafter"].options
    assert all(job.base == base.cell for job in made.values())
    hybrid = replace(base, options={"groups": ["full:64", "gdn:64"], "num_speculative_tokens": 1})
    changes = {job.change for job in variants(hybrid)}
    assert "without num_speculative_tokens = 1" in changes
    assert any(change and change.startswith("prefix_cache_retention_interval") for change in changes)
    slots = {job.change for job in variants(replace(base, law="llama.cpp", options={"n_parallel": 2}))}
    assert {"n_parallel = 4", "n_parallel = 8"} <= slots and not any("checkpoint" in str(c) for c in slots)


def test_numbers_are_dense_and_stay() -> None:
    rng = np.random.default_rng(0)
    numbering, known = Numbering(), dict[int, int]()
    for _ in range(40):
        keys = rng.integers(-(2**63), 2**63 - 1, 2000)
        keys[::7] = 0
        keys[: len(known) // 50] = list(known)[: len(known) // 50]
        numbers = numbering.numbers(keys)
        for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
            assert known.setdefault(key, number) == number
    assert sorted(known.values()) == list(range(1, numbering.count + 1))


def test_the_command_prints_writes_and_resumes(trace: TraceFile, tmp_path: Path) -> None:
    args = ["simulate", str(trace.path), "--law", "vllm@0.32:num_blocks=2500", "--law", "llama.cpp", "--limit", "60"]
    args += ["--option", "n_parallel=1|4", "--curve", "16", "--results", str(tmp_path), "--workers", "1"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    for text in ("cannot see below 512", "vllm@0.32 num_blocks=2500", "n_parallel=4", "hit rate", "no limit"):
        assert text in done.output
    found = json.loads(CliRunner().invoke(app, [*args, "--resume", "--json"]).stdout)
    assert len(found["cells"]) == 3
    assert found["curves"]["16"]["points"]


def test_the_curve_keeps_salts_and_adapters_apart(tmp_path: Path) -> None:
    spaces = [{}, {"namespace": "a"}, {"lora": "a"}, {"namespace": "a"}, {"namespace": "b"}, {}]
    head, prompt = {"format": "hitparity.trace/1", "source": "test"}, {"ids": [[0, 100]], "output": [5]}
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in [head, *(prompt | space for space in spaces)]))
    args = ["simulate", str(path), "--law", "vllm@0.32", "--curve", "16", "--json", "--results", str(tmp_path)]
    found = json.loads(CliRunner().invoke(app, args).stdout)
    (cell,) = found["cells"].values()
    assert found["curves"]["16"]["ceiling_tokens"] == 2 * 96 == cell["totals"]["by_cause"]["reused"]


def test_a_trace_without_requests_has_no_curve(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("")
    done = CliRunner().invoke(app, ["simulate", str(tmp_path / "t.jsonl"), "--format", "mooncake", "--curve", "16"])
    assert isinstance(done.exception, UsageError)
    assert "holds no request" in str(done.exception)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "nothing to simulate"),
        (["--law", "vllm@0.3"], "unknown law"),
        (["--law", "vllm@0.32", "--option", "page_size=16"], "none of these laws reads it"),
        (["--law", "vllm@0.32:block_size=0"], "positive whole number"),
        (["--law", "vllm@0.32", "--format", "moncake"], "did you mean 'mooncake'"),
        (["--law", "vllm@0.32", "--resume"], "no sweep to resume"),
    ],
)
def test_mistakes_are_said(trace: TraceFile, tmp_path: Path, args: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["simulate", str(trace.path), *args, "--results", str(tmp_path)])
    assert isinstance(done.exception, HitparityError)
    assert said in str(done.exception)
    assert done.exception.exit_code == 2
