"""Logs of real servers as requests: golden files were written by the engines' own loggers, on tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import Checkpoint
from vocabulary.errors import UsageError
from workloads.traces.logs import llama_cpp, openai, sglang, vllm
from workloads.traces.logs.base import LoggedRequest, LogReport
from workloads.traces.logs.hashing import KeyedIds
from workloads.traces.logs.template import ChatTokenizer

GOLDEN = Path(__file__).parent / "golden"
KEY = "a key of some length"
P = list(range(100, 180))
SENT = [P, P, [*P[:50], *range(300, 340)], [*P, 5], [*P, 6]]
"""What every golden log's server was asked first."""
ANSWERS = [[523, 480, 2040, 436, 2006, 5]] * 2 + [[850, 2015, 852, 139]]


def common(first: Sequence[int] | np.ndarray, second: Sequence[int] | np.ndarray) -> int:
    a, b = np.asarray(first), np.asarray(second)
    shorter = min(len(a), len(b))
    differs = a[:shorter] != b[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


@pytest.mark.parametrize("name", ["sglang-0.5.23.log", "sglang-0.5.23-json.log"])
def test_sglang(name: str) -> None:
    report = LogReport()
    requests = list(sglang.read(GOLDEN / name, report))
    assert [each.ids.tolist() for each in requests] == SENT
    assert [each.output_ids.tolist() for each in requests[:3] if each.output_ids is not None] == ANSWERS
    assert [each.hit_len for each in requests] == [0, 79, 50, 80, 80]
    assert [each.prompt_len for each in requests] == [len(ids) for ids in SENT]
    times = [each.arrival_ns or 0 for each in requests]
    assert times == sorted(times) and 0 <= times[-1] - times[0] < 2_000_000_000
    assert report.skipped == 1 and "sent as text" in report.skipped_rows[0].why


def test_vllm(tmp_path: Path) -> None:
    report = LogReport()
    requests = list(vllm.read(GOLDEN / "vllm-0.32.0.log", report))
    assert [each.ids.tolist() for each in requests[:5]] == SENT
    assert requests[5].ids.tolist()[:5] == [72, 101, 108, 108, 111], "the IDs of a prompt that was sent as text"
    assert [each.output_len for each in requests] == [6, 6, 4, 5, 5, 5]
    assert (report.skipped, report.notes) == (0, [])
    quiet = tmp_path / "quiet.log"
    lines = [line for line in (GOLDEN / "vllm-0.32.0.log").read_text().splitlines() if "DEBUG" not in line]
    quiet.write_text("\n".join(lines))
    assert list(vllm.read(quiet, report)) == []
    assert report.skipped == 6 and "VLLM_LOGGING_LEVEL=DEBUG" in report.skipped_rows[0].why


def test_vllm_chats_equal_their_api_bodies(checkpoint: Callable[[str], Checkpoint]) -> None:
    """The same traffic from the server's log and from what went over the API, through tokenizer and chat template."""
    logged, bodies = LogReport(), LogReport()
    served = list(vllm.read(GOLDEN / "vllm-0.32.0-chat.log", logged))
    tokenizer = ChatTokenizer(Path(checkpoint("tiny-qwen3").directory), template=GOLDEN / "chat.jinja")
    asked = list(openai.read(GOLDEN / "vllm-0.32.0-chat.jsonl", bodies, tokenizer))
    assert [each.ids.tolist() for each in asked] == [each.ids.tolist() for each in served]
    assert len(served) == 6
    answers = [each.output_ids for each in served]
    assert [None if each is None else len(each) for each in answers] == [8, 8, 8, 4, None, None]
    for one, other in zip(served[:3], asked[:3], strict=True):
        assert one.output_ids is not None and other.output_ids is not None
        assert one.output_ids.tolist() == other.output_ids.tolist()
    assert [each.hit_len for each in asked] == [0, 128, 128, None, 0, 0]
    assert bodies.notes == ["all 5 prompts that the server counted have the length it says"]


def test_vllm_salts_come_from_the_body(tmp_path: Path) -> None:
    log = tmp_path / "salt.log"
    log.write_text(
        'DEBUG [x] Request ab-1 JSON body: {"prompt":"x","cache_salt":"tenant"}\n'
        "DEBUG [x] Request cmpl-ab-1-0 details: prompt: 'x', prompt_token_ids: [1], prompt_embeds shape: None.\n"
        'DEBUG [x] Request req-7 JSON body: {"messages":[],"cache_salt":"other"}\n'
        "DEBUG [x] Request chatcmpl-req-7 details: prompt: 'x', prompt_token_ids: [1], prompt_embeds shape: None.\n"
        "DEBUG [x] Request cmpl-cd-0 details: prompt: 'x', prompt_token_ids: [1], prompt_embeds shape: None.\n"
    )
    report = LogReport()
    assert [each.namespace for each in vllm.read(log, report)] == ["tenant", "other", None]
    assert not any("salts" in note for note in report.notes)


def test_vllm_prompts_cut_by_the_logger_are_noted(tmp_path: Path) -> None:
    line = "DEBUG [x] Request r{} details: prompt: None, prompt_token_ids: [1, 2, 3], prompt_embeds shape: 0"
    log = tmp_path / "cut.log"
    log.write_text("\n".join(line.format(n) for n in range(3)))
    report = LogReport()
    assert len(list(vllm.read(log, report))) == 3
    assert any("exactly 3 tokens" in note and "--max-log-len" in note for note in report.notes)


def test_sglang_lists_cut_by_the_logger_are_skipped(tmp_path: Path) -> None:
    log = tmp_path / "cut.log"
    log.write_text(
        "[2026-11-30 01:50:36] Receive: obj=GenerateReqInput(rid='a', text=None, input_ids=[1, 2] ... [8, 9], x=None)\n"
        '[2026-11-30 01:50:36] {"timestamp": "2026-11-30T01:50:36", "event": "request.received", "rid": "b", '
        '"obj": {"input_ids": [1, "...", 9]}}\n'
    )
    report = LogReport()
    assert list(sglang.read(log, report)) == []
    assert [row.line for row in report.skipped_rows] == [1, 2]
    assert all("--log-requests-level 3" in row.why for row in report.skipped_rows)


def llama(name: str) -> tuple[list[LoggedRequest], LogReport]:
    report = LogReport()
    return list(llama_cpp.read(GOLDEN / name, report)), report


def test_llama_cpp_slots() -> None:
    requests, _ = llama("llama.cpp-b11549.log")
    assert [len(each.ids) for each in requests] == [80, 80, 90, 81, 81, 24, 59]
    assert [each.hit_len for each in requests] == [0, 79, 50, 50, 0, 0, 0]
    assert [common(requests[0].ids, each.ids) for each in requests[1:]] == [80, 50, 50, 0, 0, 0]


def test_llama_cpp_with_a_ram_cache_shares_what_was_shared() -> None:
    """Three conversations on two slots; beside the log lies what was really sent."""
    requests, report = llama("llama.cpp-b11549-ram.log")
    truth = json.loads((GOLDEN / "llama.cpp-b11549-ram.json").read_text())
    assert [len(each.ids) for each in requests] == [len(each["ids"]) for each in truth]
    assert [each.hit_len for each in requests] == [each["hit_len"] for each in truth]
    assert any("RAM cache" in note for note in report.notes)
    for i, request in enumerate(requests):
        sent = [common(truth[i]["ids"], each["ids"] + each["output"]) for each in truth[:i]]
        made = [
            common(request.ids, np.concatenate([each.ids, each.output_ids]))
            for each in requests[:i]
            if each.output_ids is not None
        ]
        assert (request.hit_len or 0) <= max(made, default=0) <= max(sent, default=0), (
            "a lower bound that holds the hit"
        )


def prompts() -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, 4), max_size=150), min_size=1, max_size=6)


@settings(max_examples=30)
@given(prompts(), st.integers(5, 40))
def test_hashed_ids_share_exactly_what_ids_share(rows: list[list[int]], vocab_size: int) -> None:
    keyed = KeyedIds(KEY, vocab_size)
    hashed = [keyed.ids(np.array(row, np.int32)) for row in rows]
    for i, row in enumerate(rows):
        assert len(hashed[i]) == len(row)
        assert all(0 <= each < vocab_size for each in hashed[i].tolist())
        for j in range(i):
            assert common(hashed[i], hashed[j]) == common(row, rows[j])


def test_every_place_is_a_permutation_and_no_two_are_alike() -> None:
    keyed, other = KeyedIds(KEY, 100), KeyedIds(KEY + "!", 100)
    before = np.array([7, 7, 7], np.int32)

    def at(keys: KeyedIds, prefix: np.ndarray) -> Iterator[int]:
        return (int(keys.ids(np.append(prefix, np.int32(last)))[-1]) for last in range(100))

    first, second = list(at(keyed, before)), list(at(keyed, before[:2]))
    assert sorted(first) == sorted(second) == list(range(100))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    assert sum(a == b for a, b in zip(first, at(other, before), strict=True)) < 10
    same = KeyedIds(KEY, 2000).ids(np.full(1000, 5, np.int32))
    assert len(np.unique(same)) > 600, "a token that comes a thousand times is not to be told by its number"
    assert keyed.name("tenant") == KeyedIds(KEY, 9).name("tenant") != other.name("tenant")


def test_what_cannot_be_hashed_is_said() -> None:
    with pytest.raises(UsageError, match="at least 16"):
        KeyedIds("short", 100)
    with pytest.raises(UsageError, match="token ID 100 lies outside"):
        KeyedIds(KEY, 100).ids(np.array([3, 100], np.int32))
