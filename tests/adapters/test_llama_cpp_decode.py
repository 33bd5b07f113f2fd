"""Recorded answers of llama-server (b11549, prompt of 40 tokens, 5 of them cached, n_batch 16), decoded."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from adapters.llama_cpp.completion import Timed, body_of, reply_of, spans
from adapters.llama_cpp.server_log import ServerLog
from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import EngineFailed, RequestRefused

GOLDEN = Path(__file__).parent / "golden"
REQUEST = TokenRequest(request_id="b", ids=tuple(range(1, 41)), max_tokens=3, features=frozenset({Feature.LOGPROB}))


@pytest.fixture
def events() -> list[dict[str, Any]]:
    lines = (GOLDEN / "llama_cpp_b11549.sse").read_text(encoding="utf-8").splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def timed(events: list[dict[str, Any]]) -> Timed:
    return Timed(request=REQUEST, sent_ns=1, events=[(100 + index, event) for index, event in enumerate(events)])


def test_stream(events: list[dict[str, Any]]) -> None:
    reply = reply_of(timed(events))
    assert (reply.prompt_len, reply.hit_len, reply.position_start) == (40, 5, 5)
    assert reply.steps == ((5, 21), (21, 37), (37, 40))
    assert reply.output_ids == (1306, 1632, 756)
    assert reply.first_logprob == pytest.approx(-4.68250036239624)
    assert (reply.sent_ns, reply.first_token_ns, reply.done_ns) == (1, 104, 107)  # four progress events come first
    assert reply.native["tokens_cached"] == 42


def test_without_progress_the_position_is_unknown(events: list[dict[str, Any]]) -> None:
    reply = reply_of(timed([event for event in events if "prompt_progress" not in event]))
    assert (reply.hit_len, reply.position_start, reply.steps, reply.position_source) == (5, None, None, "none")


def test_counters_that_do_not_add_up(events: list[dict[str, Any]]) -> None:
    events[-1]["timings"]["cache_n"] = 6
    with pytest.raises(EngineFailed, match="cache_n 6 \\+ prompt_n 35"):
        reply_of(timed(events))


def test_stream_that_breaks_off(events: list[dict[str, Any]]) -> None:
    for cut in range(len(events)):
        with pytest.raises(EngineFailed, match="without a final event"):
            reply_of(timed(events[:cut]))


def test_output_that_is_short(events: list[dict[str, Any]]) -> None:
    swallowed = [event for event in copy.deepcopy(events) if event.get("tokens") != [1632]]
    with pytest.raises(RequestRefused, match="UTF-8"):
        reply_of(timed(swallowed))
    swallowed[-1]["tokens_predicted"] = 2
    with pytest.raises(EngineFailed, match="stopped after 2 tokens"):
        reply_of(timed(swallowed))


def test_errors_inside_the_stream() -> None:
    with pytest.raises(RequestRefused, match="too long"):
        reply_of(timed([{"error": {"code": 400, "message": "too long"}}]))
    with pytest.raises(EngineFailed, match="broken"):
        reply_of(timed([{"error": {"code": 500, "message": "broken"}}]))


def test_what_has_no_equivalent_is_refused() -> None:
    with pytest.raises(RequestRefused, match="salt"):
        body_of(TokenRequest(request_id="r", ids=(1,), namespace="x"), progress=False)
    with pytest.raises(RequestRefused, match="prompt_logprobs"):
        body_of(TokenRequest(request_id="r", ids=(1,), features=frozenset({Feature.PROMPT_LOGPROBS})), progress=False)


def test_log_written_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"id  0 | task 9 | cached n_tokens = 3, memory_seq_rm [3, end)\nstarting\n")
    log = ServerLog(path)  # what is there already belongs to nobody
    recorded = (GOLDEN / "llama_cpp_b11549.log").read_bytes()
    first_request = recorded.index(b"stop processing") + len(b"stop processing: n_tokens = 7, truncated = 0\n")
    with path.open("ab", buffering=0) as file:
        file.write(recorded[: first_request + 300])
        assert [run.starts for run in log.finished(1)] == [[0]]
        file.write(recorded[first_request + 300 :])
        [run] = log.finished(1)
    assert (run.slot, spans(run.starts, 40)) == (0, ((5, 21), (21, 37), (37, 40)))
    assert log.finished(1, wait_s=0.01) == []
