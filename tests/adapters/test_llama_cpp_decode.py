"""Recorded answers of llama-server (b11549, prompt of 40 tokens, 5 of them cached, n_batch 16), decoded."""

from __future__ import annotations

import copy
import json
import threading
import time
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
    assert (reply.hit_source, reply.position_source) == ("timings.cache_n", "prompt_progress.processed, first event")
    assert reply.native["tokens_cached"] == 42
    assert reply.request_id == "b"


def test_without_progress_the_position_is_unknown(events: list[dict[str, Any]]) -> None:
    reply = reply_of(timed([event for event in events if "prompt_progress" not in event]))
    assert (reply.hit_len, reply.position_start, reply.steps, reply.position_source) == (5, None, None, "none")


def test_older_servers_tell_no_hit(events: list[dict[str, Any]]) -> None:
    del events[-1]["timings"]["cache_n"]
    reply = reply_of(timed(events))
    assert (reply.hit_len, reply.hit_source, reply.position_start) == (None, "none", 5)


def test_counters_that_do_not_add_up(events: list[dict[str, Any]]) -> None:
    events[-1]["timings"]["cache_n"] = 6
    with pytest.raises(EngineFailed, match="cache_n 6 \\+ prompt_n 35"):
        reply_of(timed(events))


def test_stream_that_breaks_off(events: list[dict[str, Any]]) -> None:
    for cut in range(len(events)):
        with pytest.raises(EngineFailed, match="without a final event"):
            reply_of(timed(events[:cut]))
    del events[-1]["timings"]
    with pytest.raises(EngineFailed, match="without a final event"):
        reply_of(timed(events))


def test_of_several_tokens_in_one_event_the_first_is_timed(events: list[dict[str, Any]]) -> None:
    first, second, *rest = [event for event in events if "prompt_progress" not in event]
    joined = first | {key: first[key] + second[key] for key in ("tokens", "completion_probabilities") if key in first}
    reply = reply_of(timed([joined, *rest]))
    assert reply.output_ids == (1306, 1632, 756)
    assert reply.first_logprob == pytest.approx(-4.68250036239624)


def test_an_event_of_unknown_form_is_quoted(events: list[dict[str, Any]]) -> None:
    strange = {"tokens": 5, "rest": "x" * 400}
    with pytest.raises(EngineFailed) as failed:
        reply_of(timed([*events, strange]))
    assert str(failed.value).endswith(f"the last one: {str(strange)[:300]}")


def test_output_that_is_short(events: list[dict[str, Any]]) -> None:
    swallowed = [event for event in copy.deepcopy(events) if event.get("tokens") != [1632]]
    with pytest.raises(RequestRefused, match="UTF-8"):
        reply_of(timed(swallowed))
    for predicted in (2, 1, None):
        swallowed[-1]["tokens_predicted"] = predicted
        with pytest.raises(EngineFailed, match="stopped after 2 tokens"):
            reply_of(timed(swallowed))


def test_errors_inside_the_stream() -> None:
    with pytest.raises(RequestRefused, match="too long"):
        reply_of(timed([{"error": {"code": 400, "message": "too long"}}]))
    with pytest.raises(EngineFailed, match="broken"):
        reply_of(timed([{"error": {"code": 500, "message": "broken"}}]))


@pytest.mark.parametrize(
    ("code", "kind"), [(399, EngineFailed), (400, RequestRefused), (499, RequestRefused), (None, EngineFailed)]
)
def test_only_4xx_refuses(code: int | None, kind: type[Exception]) -> None:
    said = {"message": "no"} | ({} if code is None else {"code": code})
    with pytest.raises(kind, match=r"^llama\.cpp: (refused: )?no$"):
        reply_of(timed([{"error": said}]))


@pytest.mark.parametrize("code", [400, 500])
def test_output_that_is_not_text_is_refused_whatever_the_code(code: int) -> None:
    with pytest.raises(RequestRefused, match="UTF-8"):
        reply_of(timed([{"error": {"code": code, "message": "it does not match the expected peg-native format"}}]))
    with pytest.raises(EngineFailed, match="plain words"):
        reply_of(timed([{"error": "plain words"}]))


def test_a_body_asks_for_exactly_the_tokens_greedily() -> None:
    plain = TokenRequest(request_id="r", ids=(5, 6), max_tokens=4)
    always = {
        "prompt": [5, 6], "n_predict": 4, "temperature": 0, "ignore_eos": True, "cache_prompt": True, "stream": True,
        "return_tokens": True,
    }  # fmt: skip
    assert body_of(plain, progress=False) == always
    assert body_of(plain, progress=True) == always | {"return_progress": True}
    assert body_of(REQUEST, progress=False)["n_probs"] == 1


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


def test_a_line_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"")
    log = ServerLog(path)

    def write() -> None:
        for line in (b" id  1 | task 3 | memory_seq_rm [7, end)\n", b" id  1 | task 3 | stop processing\n"):
            time.sleep(0.1)
            with path.open("ab") as file:
                file.write(line)

    writer = threading.Thread(target=write)
    writer.start()
    (run,) = log.finished(1, wait_s=60)
    writer.join()
    assert (run.slot, run.starts, run.done) == (1, [7], True)


def test_a_task_without_a_prompt_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"")
    log = ServerLog(path)
    path.write_bytes(
        b" id  0 | task 1 | stop processing\n id  0 | task 2 | memory_seq_rm [0, end)\n"
        b" id  1 | task 3 | memory_seq_rm [4, end)\n id  1 | task 3 | stop processing\n"
    )
    assert [(run.slot, run.starts) for run in log.finished(2, wait_s=0)] == [(1, [4])]
    with path.open("ab") as file:
        file.write(b" id  0 | task 2 | memory_seq_rm [9, end)\n id  0 | task 2 | stop processing\n")
    assert [(run.slot, run.starts) for run in log.finished(1)] == [(0, [0, 9])]
