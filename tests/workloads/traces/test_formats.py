"""One synthetic traffic in every format: each reader sees the sharing that the generator put in, to its block."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from vocabulary.errors import UsageError
from workloads.traces.base import TraceRequest
from workloads.traces.generate import Generated, Traffic, generate
from workloads.traces.own import Own, TraceHead, TraceWriter
from workloads.traces.registry import READERS, open_trace
from workloads.traces.stretches import block_ends
from workloads.traces.token_form import TokenForm
from workloads.traces.write import ids_of, write_trace

BLOCKS = {"mooncake": 64, "bailian": 16, "agents": 64, "counters": 8, "hitparity": 16}
TRAFFIC = Traffic(requests=60, seed=3, mean_len=300, systems=2, documents=3)


def common(first: Sequence[int] | np.ndarray, second: Sequence[int] | np.ndarray) -> int:
    a, b = np.asarray(first), np.asarray(second)
    shorter = min(len(a), len(b))
    differs = a[:shorter] != b[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


@pytest.fixture(scope="module")
def traffic() -> list[Generated]:
    return list(generate(TRAFFIC))


def read(tmp_path: Path, traffic: list[Generated], name: str) -> list[TraceRequest]:
    path = tmp_path / "t.jsonl"
    assert write_trace(iter(traffic), path, name, BLOCKS[name]) == (60, sum(each.input_len for each in traffic))
    reader = open_trace(path, block_len=BLOCKS[name])
    assert reader.format == name, "the first line tells the format"
    requests = list(reader)
    assert reader.split_ids == 0
    assert str(BLOCKS[name]) in reader.blind_below
    return requests


@pytest.mark.parametrize("name", READERS)
def test_every_reader_sees_what_was_generated(tmp_path: Path, traffic: list[Generated], name: str) -> None:
    requests = read(tmp_path, traffic, name)
    made = traffic
    if name == "agents":  # sessions one after another
        made = sorted(traffic, key=lambda each: (each.session, each.arrival_ns))
    assert [each.input_len for each in requests] == [each.input_len for each in made]
    assert [each.output_len for each in requests] == [each.output_len for each in made]
    times = [each.arrival_ns for each in requests if each.arrival_ns is not None]
    assert len(times) == len(requests) and times == sorted(times)
    numbers = [block_ends(each.prompt, 1) for each in made]
    shared = 0
    for i, request in enumerate(requests):
        assert len(request.blocks) == -(-request.input_len // request.block_len)
        for j in range(i):
            truth = common(numbers[i], numbers[j])
            if name in ("agents", "counters") and made[i].session != made[j].session:
                truth = 0  # what sessions share is not in these formats
            seen = common(request.blocks, requests[j].blocks) * request.block_len
            assert truth - request.block_len < min(seen, request.input_len) <= truth or (truth == seen == 0)
            shared += seen > 0
    assert shared > 20, "a test of nothing"


@pytest.mark.parametrize("name", ["bailian", "hitparity", "counters"])
def test_token_form_of_every_format(tmp_path: Path, traffic: list[Generated], name: str) -> None:
    requests = read(tmp_path, traffic, name)
    form = TokenForm(32_000)
    prompts = [form.ids(request) for request in requests]
    for i, request in enumerate(requests):
        assert len(prompts[i]) == request.input_len
        for j in range(i):
            blocks = common(request.blocks, requests[j].blocks) * request.block_len
            if name == "hitparity":
                assert common(prompts[i], prompts[j]) == common(ids_of(traffic[i].prompt), ids_of(traffic[j].prompt))
            else:
                assert common(prompts[i], prompts[j]) == min(blocks, request.input_len, requests[j].input_len)


def test_equal_seeds_give_equal_traffic_and_the_mean_is_met() -> None:
    many = Traffic(requests=3000, mean_len=2000)
    first, second = list(generate(many)), list(generate(many))
    assert first == second
    assert first != list(generate(Traffic(requests=3000, mean_len=2000, seed=1)))
    assert np.mean([each.input_len for each in first]) == pytest.approx(2000, rel=0.15)
    tools = sum(each.turn > 1 for each in first)
    assert 0.5 < tools / 3000 < 0.9


def test_bailian_ids_of_equal_content_are_split(tmp_path: Path) -> None:
    """An ID that stands for content follows two prefixes: taken at its word it would be a hit that nobody has."""
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "hash_ids": [7, 9]},
        {"chat_id": 2, "parent_chat_id": -1, "timestamp": 1.0, "hash_ids": [8, 9]},
        {"chat_id": 3, "parent_chat_id": 1, "timestamp": 2.25, "hash_ids": [7, 9]},
        {"chat_id": 4, "parent_chat_id": 3, "timestamp": 3, "hash_ids": [9, 7]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row | {"input_length": 32, "output_length": 1}) for row in rows))
    reader = open_trace(path)
    requests = list(reader)
    assert reader.split_ids == 2
    assert requests[0].blocks[1] != requests[1].blocks[1]
    assert (requests[0].blocks == requests[2].blocks).all()
    assert [each.session for each in requests] == ["1", "2", "1", "1"]
    assert [each.parent for each in requests] == [None, None, "1", "3"]
    assert requests[2].arrival_ns == 2_250_000_000
    naive = open_trace(path, rekey=False)
    assert next(iter(naive)).blocks.tolist() == [7, 9]
    assert naive.split_ids == 2


def test_agents_with_subagents_and_local_ids(tmp_path: Path) -> None:
    inner = {"t": 1.5, "type": "s", "in": 70, "out": 9, "hash_ids": [3]}
    session = {
        "id": "a",
        "block_size": 64,
        "requests": [
            {"t": 0.0, "type": "n", "in": 130, "out": 20, "hash_ids": [1, 2]},
            {"t": 4.0, "type": "n", "in": 192, "out": 20, "hash_ids": [1, 2, 4]},
            {"t": 1.0, "type": "subagent", "requests": [inner]},
        ],
    }
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(session) + "\n" + json.dumps(session) + "\n")
    requests = list(open_trace(path))
    assert [each.input_len for each in requests] == [130, 70, 192] * 2
    assert [each.arrival_ns for each in requests[:4]] == [0, 1_500_000_000, 4_000_000_000, 4_000_000_000]
    assert common(requests[0].blocks, requests[2].blocks) == 2
    assert common(requests[0].blocks, requests[3].blocks) == 0
    path.write_text(json.dumps(session | {"block_size": 32}))
    with pytest.raises(UsageError, match="opened for 64"):
        list(open_trace(path))


def test_counters_keep_prompt_and_answer(tmp_path: Path) -> None:
    rounds = [(100, 0, 100, 20), (160, 120, 40, 10), (90, 50, 40, 5), (200, 150, 50, 1)]
    path = tmp_path / "t.jsonl"
    rows = [
        {
            "session_id": "a",
            "input_tokens_total": total,
            "prefix_tokens": prefix,
            "newly_append_tokens": new,
            "output_tokens": out,
        }
        for total, prefix, new, out in rounds
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    reader = open_trace(path, block_len=1)
    requests = list(reader)
    assert common(requests[0].blocks, requests[1].blocks) == 100
    assert common(requests[1].blocks, requests[2].blocks) == 50
    assert common(requests[3].blocks, requests[2].blocks) == 90
    assert reader.unknown_prefix_tokens == 150 - 95  # type: ignore[attr-defined]
    assert all(each.arrival_ns is None for each in requests)
    path.write_text(json.dumps(rows[0] | {"prefix_tokens": 3}))
    with pytest.raises(UsageError, match="prefix 3 \\+ appended 100 = 103, and the total is 100"):
        list(open_trace(path))


def test_own_traces_keep_every_id_and_store_shared_ones_once(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rng = np.random.default_rng(0)
    prompts, outputs = [], []
    for turn in range(20):
        before = np.concatenate([prompts[-1], outputs[-1]]) if turn % 7 else np.empty(0, np.int32)
        cut = before[: len(before) - turn % 3]
        prompts.append(np.concatenate([cut, rng.integers(0, 2**31 - 1, 200, np.int32), np.arange(50, dtype=np.int32)]))
        outputs.append(rng.integers(0, 9, 30, np.int32))
    with TraceWriter(path, TraceHead(source="test", vocab_size=2**31 - 1, hashed=True)) as writer:
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            writer.add(prompt, output, arrival_ns=number, session="s", parent="p", namespace="n", lora="l")
    reader = open_trace(path)
    requests = list(reader)
    assert isinstance(reader, Own) and reader.head == TraceHead(source="test", vocab_size=2**31 - 1, hashed=True)
    for request, prompt, output in zip(requests, prompts, outputs, strict=True):
        assert request.ids is not None and (request.ids == prompt).all()
        assert request.output_ids is not None and (request.output_ids == output).all()
        assert (request.session, request.parent, request.namespace, request.lora) == ("s", "p", "n", "l")
    assert [each.arrival_ns for each in requests] == list(range(20))
    assert path.stat().st_size < 12 * 20 * 250, "most of 20 growing prompts is stored once"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"ids": [1], "from": [9, 1]}, "names line 9"),
        ({"ids": [1], "from": [2, 5]}, "takes 5 tokens of line 2, which has 3"),
        ({"ids": []}, "the prompt is empty"),
        ({"ids": [-1]}, "outside"),
        ({"ids": [[3, 3]]}, "no range"),
        ({"ids": [1, [2, 3]]}, "neither"),
        ({}, "'ids' is no list"),
    ],
)
def test_malformed_own_rows(tmp_path: Path, row: dict[str, object], why: str) -> None:
    path = tmp_path / "t.jsonl"
    lines = [{"format": "hitparity.trace/1", "source": "x"}, {"ids": [5, 6], "output": [7]}, row]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=f":3: .*{why}"):
        list(open_trace(path))


def test_a_broken_off_writer_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(KeyError), TraceWriter(path, TraceHead(source="x")):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = json.dumps({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]})
    path.write_text(f"{row}\n{row}\n", encoding="utf-8-sig")
    assert [each.line for each in open_trace(path)] == [1, 2]
    path.write_bytes(b"")
    assert not list(open_trace(path, "mooncake"))


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59Z"])
def test_times_that_no_column_holds_are_malformed(tmp_path: Path, when: str) -> None:
    path = tmp_path / "t.jsonl"
    counted = {"session_id": "a", "input_tokens_total": 9, "prefix_tokens": 0, "newly_append_tokens": 9}
    path.write_text(json.dumps(counted | {"timing_events": [{"event_type": "user_message", "timestamp": when}]}))
    with pytest.raises(UsageError, match="no time between 1970 and 2116"):
        list(open_trace(path))


def test_sessions_that_do_not_fit_one_clock_are_malformed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    request = {"t": 4e9, "type": "n", "in": 64, "out": 1, "hash_ids": [1]}
    path.write_text((json.dumps({"id": "a", "block_size": 64, "requests": [request]}) + "\n") * 3)
    reader = open_trace(path, skip_malformed=True)
    assert len(list(reader)) == 1
    assert reader.malformed == 2


def test_unknown_formats_are_said(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="none of the trace formats hitparity, mooncake"):
        open_trace(path)
    with pytest.raises(UsageError, match="did you mean 'mooncake'"):
        open_trace(path, "moncake")
    with pytest.raises(UsageError, match="cannot be read"):
        open_trace(tmp_path / "no.jsonl")
