"""The trace family: rows of a file as sends, served in order or at their times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.experiment import load_experiment
from harness.plan import plan
from harness.progress import ConsoleProgress
from harness.records import RequestRecord, Role
from harness.runner import Runner, open_run
from harness.store import load_run
from vocabulary.errors import UsageError
from workloads.families.trace import Trace, trace
from workloads.sequence import Send
from workloads.source import TokenSource
from workloads.traces.generate import Traffic, generate
from workloads.traces.own import TraceHead, TraceWriter
from workloads.traces.write import write_trace

EXPERIMENT = """
name = "replay"
models = ["tiny-qwen3"]
[checks]
control = false
[[engine]]
name = "{engine}"
{more}
[[workload]]
family = "trace"
trace = "traces/t.jsonl"
divide = 32
longest = 300
first = {first}
{open_loop}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "traces").mkdir()
    write_trace(generate(Traffic(requests=30, mean_len=3000)), tmp_path / "traces" / "t.jsonl", "mooncake", 512)
    return tmp_path


def sends_of(folder: Path, seed: int = 1, **parameters: object) -> tuple[Send, ...]:
    source = TokenSource(seed, 2048, reserved=frozenset({0, 1}), locate=lambda name: folder / name)
    return trace(Trace.model_validate({"trace": "traces/t.jsonl"} | parameters), source)


def prefix(first: Sequence[int], second: Sequence[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def test_rows_become_sends_of_the_engines_vocabulary(folder: Path) -> None:
    sends = sends_of(folder, divide=32, first=20)
    assert [send.label for send in sends] == [f"line {n}" for n in range(1, 21)]
    assert sends == sends_of(folder, divide=32, first=20)
    assert sends != sends_of(folder, seed=2, divide=32, first=20)
    prompts = [send.prompt(()) for send in sends]
    assert all(min(ids) >= 2 and max(ids) < 2048 for ids in prompts)
    shared = [prefix(a, b) for n, a in enumerate(prompts) for b in prompts[:n]]
    assert any(shared) and all(each % 16 == 0 for each in shared), "blocks of 512 are blocks of 16 now"
    assert {send.max_tokens for send in sends} == {1}
    assert max(send.max_tokens for send in sends_of(folder, divide=32, answers=True)) > 5
    assert len(sends_of(folder, divide=32, longest=100)) < 30
    assert {send.at_ns for send in sends} == {None}


def test_times_are_offsets_divided_by_the_speed(folder: Path) -> None:
    slow, fast = (sends_of(folder, divide=32, open_loop=True, speed=speed) for speed in (1, 4))
    offsets = [send.at_ns or 0 for send in slow]
    assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] > 1_000_000_000
    assert [send.at_ns for send in fast] == [round(each / 4) for each in offsets]
    assert all(send.with_previous for send in slow)


def test_what_cannot_be_replayed_is_said(folder: Path) -> None:
    with pytest.raises(UsageError, match="divisor"):
        sends_of(folder, divide=3)
    with pytest.raises(UsageError, match="cannot be read"):
        sends_of(folder, trace="none.jsonl")
    own = folder / "own.jsonl"
    with TraceWriter(own, TraceHead(source="test")) as writer:
        writer.add(np.arange(90_000, 90_040, dtype=np.int32), namespace="n")
    with pytest.raises(UsageError, match=r"line 2: token IDs reach 90039.*redraw"):
        sends_of(folder, trace="own.jsonl")
    (send,) = sends_of(folder, trace="own.jsonl", redraw=True)
    assert len(send.prompt(())) == 40 and max(send.prompt(())) < 2048 and send.namespace == "n"
    with pytest.raises(UsageError, match="not every row has a time"):
        sends_of(folder, trace="own.jsonl", redraw=True, open_loop=True)


def run(folder: Path, **values: object) -> list[RequestRecord]:
    path = folder / "experiment.toml"
    path.write_text(EXPERIMENT.format(**{"more": "", "open_loop": "", "first": 12} | values))
    experiment = load_experiment(path)
    groups = plan(experiment)
    results = open_run(experiment, path, groups, folder / "results", resume=False)
    Runner(experiment, path, results, ConsoleProgress()).run(groups)
    done = load_run(results)
    for cell in done.cells:
        if cell.why:
            raise UsageError(cell.why)
    return [record for record in done.requests if record.role is Role.PROBE]


def test_a_law_replays_a_trace(folder: Path) -> None:
    records = run(folder, engine="law", more='law = "vllm@0.32"\noptions = { groups = ["full:16"] }')
    assert len(records) > 5
    assert any(record.hit_len for record in records)
    with pytest.raises(UsageError, match="cannot send at recorded times"):
        run(folder, engine="law", more='law = "vllm@0.32"', open_loop="open_loop = true")


@pytest.mark.live("llama.cpp")
def test_an_open_loop_on_a_server(folder: Path) -> None:
    """Sent at their times though earlier ones are not answered yet; how late is in the record."""
    options = "options = { n_ctx = 4096, n_parallel = 2 }"
    records = run(folder, engine="llama.cpp", more=options, first=8, open_loop="open_loop = true\nspeed = 20")
    assert len(records) > 3
    late = [record.native["late_ns"] for record in records]
    assert all(each >= 0 for each in late), "none is sent before its time"
    sent = [record.sent_ns for record in records]
    offsets = [
        (send.at_ns or 0) for send in sends_of(folder, divide=32, longest=300, first=8, open_loop=True, speed=20)
    ]
    assert [a - b for a, b in zip(sent, late, strict=True)] == [sent[0] - late[0] + each for each in offsets]
