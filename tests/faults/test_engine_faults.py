"""Faults of engines: each in a real process that speaks the protocol of an adapter, met by the real runner.

A fault is one row: what is injected, what the user is told, the exit code, the protocols it can be injected into. By
default it is injected into one of them, in turn; with HITPARITY_FAULTS=all into each.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from injecting import ENGINES, Fault, inject, shown

from harness.records import CellStatus
from vocabulary.errors import ExitCode

HTTP = ("vllm", "sglang", "llama.cpp")
DOWN, FINDINGS, CLEAN, USAGE, OPEN = (
    ExitCode.UNAVAILABLE,
    ExitCode.FINDINGS,
    ExitCode.CLEAN,
    ExitCode.USAGE,
    ExitCode.INCONCLUSIVE,
)
KILLED, STATUS_1 = "was killed by signal SIGKILL", "exited with status 1...MemoryError"
NO_JSON = "answered something that is not JSON"
LATE = "not finished within 2 s"
FAULTS = (
    # starting
    Fault("start_crash", "exited with status 1...made-up kernel is missing", DOWN),
    Fault("start_killed", KILLED, DOWN),
    Fault("start_oom", STATUS_1, DOWN),
    Fault("start_hang", "not ready after 1 s", DOWN, HTTP, start_timeout_s=1),
    Fault("start_hang", "no answer within 1 s", DOWN, ("worker",), start_timeout_s=1),
    Fault("start_deaf", "SIGTERM did not end it within 0.3 s; killed", DOWN, HTTP, start_timeout_s=1),
    Fault("imposter", "exited with status 1 while starting...address already in use", DOWN, HTTP),
    Fault("untested_version", "9.9.0", CLEAN, ("vllm", "sglang")),
    Fault(
        "another_model", "the server runs a 'llama' model, the experiment's tiny-qwen3 is 'qwen3'", DOWN, ("sglang",)
    ),
    Fault("another_model", "serves a model of 32000 tokens in float32, but ... has 2048", DOWN, ("llama.cpp",)),
    Fault("another_protocol", "the worker said ... in place of hello 1", DOWN, ("worker",)),
    Fault("facts_wrong", "facts: granule: Input should be a valid integer", DOWN, ("vllm", "worker")),
    Fault("facts_wrong", "/server_info is not of the form of 0.5.23", DOWN, ("sglang",)),
    Fault("facts_wrong", "/props and /v1/models lack a field", DOWN, ("llama.cpp",)),
    Fault("facts_html", f"{NO_JSON}: <html>It works!</html>", DOWN, ("sglang", "llama.cpp")),
    Fault("facts_html", "the worker wrote a line that is not JSON: b'Loading weights", DOWN, ("worker",)),
    Fault("no_probe", "the server runs, but hitparity's scheduler probe was not loaded", DOWN, ("vllm",)),
    Fault("no_probe", "the probe saw no prefill step of request ...; its hook does not fit", DOWN, ("sglang",)),
    # dying and hanging
    Fault("killed_between", f"got no answer...; the server {KILLED}", DOWN, HTTP),
    Fault("port_lost", "got no answer: Connection", DOWN, HTTP),
    Fault("killed_in_prefill", KILLED, DOWN),
    Fault("killed_by_child", KILLED, DOWN, ("sglang", "vllm", "llama.cpp", "worker")),
    Fault("killed_in_stream", f"ended ...; the server {KILLED}", DOWN, HTTP),
    Fault("oom_in_prefill", STATUS_1, DOWN),
    Fault("oom_in_stream", STATUS_1, DOWN, HTTP),
    Fault("hang_in_prefill", f"got no answer: {LATE}", DOWN, HTTP, request_timeout_s=2),
    Fault("hang_in_prefill", "no answer within 2 s", DOWN, ("worker",), request_timeout_s=2),
    Fault("stall_in_stream", f"broke off: {LATE}", DOWN, HTTP, request_timeout_s=2),
    Fault("drips_comments", f"broke off: {LATE}", DOWN, HTTP, request_timeout_s=2),
    Fault("endless_events", f"broke off: {LATE}", DOWN, HTTP, request_timeout_s=2),
    # replies that are none
    Fault("cut_after_event", "ended", DOWN, HTTP),
    Fault("cut_in_event", f'{NO_JSON}: {{"tok', DOWN, HTTP),
    Fault("closed_unanswered", "got no answer: RemoteDisconnected", DOWN, HTTP),
    Fault("no_http", "got no answer: BadStatusLine", DOWN, HTTP),
    Fault("short_body", NO_JSON, DOWN, HTTP),
    Fault("endless_line", "sent a line of over 8388608 bytes", DOWN, HTTP),
    Fault("endless_line", "answered with a line of over 67108864 bytes", DOWN, ("worker",)),
    Fault("reset_oversized", "answered over 67108864 bytes", DOWN, HTTP),
    Fault("not_json", f"{NO_JSON}: {{'id': 1}}", DOWN, HTTP),
    Fault("not_json", "the worker wrote a line that is not JSON", DOWN, ("worker",)),
    Fault("not_utf8", f'{NO_JSON}: {{"id": "\ufffd\ufffd"}}', DOWN, HTTP),
    Fault("not_an_object", "an event of unknown form", DOWN, HTTP),
    Fault("another_object", "an event of unknown form", DOWN, ("vllm", "sglang")),
    Fault("another_object", "ended without a final event", DOWN, ("llama.cpp",)),
    Fault("nested", NO_JSON, DOWN, HTTP),
    Fault("long_number", NO_JSON, DOWN, HTTP),
    Fault("refused", "made-up trouble", USAGE),
    Fault("refused_in_stream", "made-up trouble", USAGE, HTTP),
    Fault("overloaded", "made-up trouble", DOWN),
    Fault("failed_in_stream", "made-up trouble", DOWN, HTTP),
    # lies
    Fault("prompt_miscount", "78 tokens sent, the engine counted 79", FINDINGS),
    Fault("hit_negative", "hit -16 ... lies outside [0, 77]", FINDINGS),
    Fault("hit_too_large", "hit 94 ... lies outside [0, 77]", FINDINGS),
    Fault("hit_of_the_whole", "hit 78 ... lies outside [0, 77]", FINDINGS),
    Fault("hit_huge", f"hit {10**30} ... lies outside [0, 77]", FINDINGS),
    Fault("hit_as_text", "hit_len: Input should be a valid integer", DOWN, ("vllm", "sglang", "worker")),
    Fault("hit_as_text", "an event of unknown form", DOWN, ("llama.cpp",)),
    Fault("hit_as_float", "hit_len: Input should be a valid integer", DOWN, ("vllm", "sglang", "worker")),
    Fault("hit_contradicted", "but computing started at", FINDINGS),
    Fault("hit_lost", "hit 0, the law ... says", FINDINGS),
    Fault("hit_invented", "is longer than the true common prefix 17", FINDINGS),
    Fault("reset_lies", "a prompt hit 32 tokens after the reset", FINDINGS),
    Fault("reset_refused", "the engine offers no way to empty its cache", FINDINGS, ("vllm", "llama.cpp", "worker")),
    Fault("reset_refused", "POST /flush_cache?timeout=5 answered 501", DOWN, ("sglang",)),
    Fault("reset_vague", "/reset_prefix_cache answered neither yes nor no", DOWN, ("vllm",)),
    Fault("another_id", "answered another request's", DOWN, ("vllm", "sglang")),
    Fault("another_id", "the worker's replies are not those of the 1 request", DOWN, ("worker",)),
    Fault("clock_back", "its times run backwards", DOWN, ("worker",)),
    Fault("token_outside", "generated token 2055 lies outside the vocabulary [0, 2048)", FINDINGS),
    Fault("token_negative", "generated token -1 lies outside the vocabulary [0, 2048)", FINDINGS),
    Fault("token_as_text", "output_ids.0: Input should be a valid integer", DOWN),
    Fault("too_few_tokens", "stopped after 0 tokens", DOWN, ("llama.cpp",)),
    Fault("too_few_tokens", "generated 0 tokens, 1 were asked for", DOWN, ("worker",)),
    Fault("too_many_tokens", "generated 2 tokens, 1 were asked for", DOWN, ("vllm", "sglang", "worker")),
    Fault("warm_differs", "against cold: generated token 0 differs", FINDINGS),
    Fault("cold_differs", "'A' cold twice: generated token 0 differs", OPEN),
    Fault("logprob_nan", "log-probability of the first token differs by nan", OPEN),
    Fault("logprob_text", "first_logprob: Input should be a valid number", DOWN, ("vllm", "worker")),
    # stopping
    Fault("deaf", "SIGTERM did not end it within 0.3 s; killed", CLEAN, HTTP),
    Fault("deaf_child", "SIGTERM did not end it within 0.3 s; killed", CLEAN),
    Fault("fails_at_stop", "", CLEAN),
)

IN_WORDS = {
    "start_deaf": "start hangs, SIGTERM ignored",
    "imposter": "another program was faster on its port",
    "no_probe": "hitparity's probe is not loaded in it",
    "facts_html": "HTML in place of facts",
    "killed_between": "killed between requests",
    "killed_by_child": "killed by its own child, other children left behind",
    "drips_comments": "never-ending stream of comments",
    "endless_events": "never-ending stream of events",
    "no_http": "another protocol on the port",
    "nested": "reply nested 100,000 deep",
    "another_id": "answers another request's id",
    "clock_back": "its clock steps back",
    "reset_lies": "a reset that says success and does nothing",
    "hit_contradicted": "hit contradicts a second source",
    "deaf": "ignores SIGTERM at the end",
    "deaf_child": "its child ignores SIGTERM at the end",
    "fails_at_stop": "crashes on SIGTERM",
}
"""Names that need more words for the page."""


def cases() -> list[object]:
    """One test per fault and protocol, with the mark that docs/faults.md is made from."""
    found = []
    for number, fault in enumerate(FAULTS):
        chosen = fault.on if os.environ.get("HITPARITY_FAULTS") == "all" else [fault.on[number % len(fault.on)]]
        for protocol in chosen:
            where = "any engine" if fault.on == tuple(ENGINES) else ", ".join(fault.on)
            mark = pytest.mark.fault(
                IN_WORDS.get(fault.name, fault.name.replace("_", " ")), where, fault.message, int(fault.code)
            )
            found.append(pytest.param(fault, protocol, id=f"{fault.name}-{protocol}", marks=mark))
    return found


@pytest.mark.parametrize(("fault", "protocol"), cases())
def test_a_fault_is_told_and_costs_nothing_else(fault: Fault, protocol: str, tmp_path: Path) -> None:
    done = inject(tmp_path, protocol, fault)
    assert shown(fault.message, done.said), done.said
    assert done.code == fault.code
    assert not done.traceback
    assert not done.left_over
    assert done.neighbour.status is CellStatus.COMPLETE and done.neighbour.exit_code is CLEAN
    assert done.faulty.requests == len(done.records)
    if fault.code in (DOWN, USAGE):
        assert done.faulty.status is CellStatus.FAILED and not done.faulty.valid
        # The reply that could not be used is the only one that may lack its line.
        assert len(done.records) <= done.answered <= len(done.records) + 1
        assert (
            fault.name.startswith(("start", "facts", "no_", "imposter", "another", "reset")) or len(done.records) >= 5
        )
    else:
        assert done.faulty.status is CellStatus.COMPLETE
        assert len(done.records) == done.answered >= 11
    if fault.name == "untested_version":
        assert {record.law for record in done.records} == {None}


@pytest.mark.parametrize("protocol", ENGINES)
def test_without_a_fault_the_faulty_engine_is_clean(protocol: str, tmp_path: Path) -> None:
    done = inject(tmp_path, protocol, Fault("", "", CLEAN))
    assert done.code == CLEAN and done.faulty.valid and not done.left_over
    assert len(done.records) == done.answered == 13
    assert all(record.law and not record.findings for record in done.records)


MISSING = [
    pytest.param(
        protocol, key, message, id=f"{key}-{protocol}", marks=pytest.mark.fault("missing", protocol, message, int(DOWN))
    )
    for protocol, key, message in (
        ("vllm", "python", 'python = "/nowhere/engine" does not run'),
        ("llama.cpp", "binary", "cannot run /nowhere/engine"),
    )
]


@pytest.mark.parametrize(("protocol", "key", "message"), MISSING)
def test_an_engine_that_is_not_there(protocol: str, key: str, message: str, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setitem(ENGINES, protocol, ENGINES[protocol].replace("{fake}", "/nowhere/engine"))
    done = inject(tmp_path, protocol, Fault("", message, DOWN))
    assert done.code == DOWN and shown(message, done.said) and not done.traceback


@pytest.mark.fault("package missing in its environment", "vllm", "exited with status 1...No module named", int(DOWN))
def test_an_environment_without_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare").write_text('#!/bin/sh\nexec python3 -IS "$@"\n', encoding="utf-8")
    (tmp_path / "bare").chmod(0o755)
    monkeypatch.setitem(ENGINES, "vllm", f'name = "vllm"\npython = "{tmp_path / "bare"}"')
    done = inject(tmp_path, "vllm", Fault("", "", DOWN))
    assert done.code == DOWN and shown("exited with status 1...No module named", done.said) and not done.left_over


@pytest.mark.fault(
    "port taken", "vllm, sglang, llama.cpp", "port ... cannot be used (Address already in use)", int(DOWN)
)
@pytest.mark.parametrize("protocol", HTTP)
def test_a_port_that_is_taken(protocol: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = inject(tmp_path, protocol, Fault("", "", DOWN), more=f"\nport = {taken.getsockname()[1]}")
    assert done.code == DOWN and shown("port ... cannot be used (Address already in use)", done.said)
