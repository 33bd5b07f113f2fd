"""Engine processes: how a start fails, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adapters.base import EngineSpec, Options
from adapters.checked import facts_from
from adapters.process import EngineProcess, port_for
from adapters.worker import Worker
from vocabulary.engine import Mode, TokenRequest
from vocabulary.errors import EngineFailed, EngineUnavailable

PARENT_AND_CHILD = """
import subprocess, sys, time
stubborn = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True)"
subprocess.Popen([sys.executable, "-c", stubborn + "; time.sleep(60)"])
time.sleep(60)
"""
KILLED_HARNESS = """
import sys, time
from pathlib import Path
from adapters.process import EngineProcess
deaf = "from signal import *; import time; signal(SIGTERM, SIG_IGN); print('deaf', flush=True); time.sleep(60)"
command = [sys.executable, "-c", deaf]
print(EngineProcess("made-up", command, log=Path(sys.argv[1]), environment={}).child.pid, flush=True)
time.sleep(60)
"""


def start(tmp_path: Path, *command: str) -> EngineProcess:
    return EngineProcess("made-up", command, log=tmp_path / "engine.log", environment={})


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{path} stayed empty")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="made-up: cannot run /nowhere/engine"):
        start(tmp_path, "/nowhere/engine")


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("raise SystemExit(7)", "exited with status 7"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.kill(os.getpid(), 37)", "killed by signal 37"),
    ],
)
def test_an_engine_that_dies_while_starting_says_how_and_shows_its_log(tmp_path: Path, code: str, ending: str) -> None:
    process = start(tmp_path, sys.executable, "-c", f"print('what went wrong', flush=True); {code}")
    with pytest.raises(EngineUnavailable, match=rf"(?s){ending} while starting.*engine\.log.*what went wrong"):
        process.wait_ready(lambda: False, 60)
    process.stop()


def test_an_engine_that_never_gets_ready(tmp_path: Path) -> None:
    process = start(tmp_path, sys.executable, "-c", "import time; time.sleep(60)")
    with pytest.raises(EngineUnavailable, match="not ready after 0 s"):
        process.wait_ready(lambda: False, 0.3)
    process.stop()
    assert not alive(process.child.pid)


def test_stop_reaches_a_child_that_ignores_sigterm(tmp_path: Path) -> None:
    command = (sys.executable, "-c", PARENT_AND_CHILD)
    process = EngineProcess("made-up", command, log=tmp_path / "engine.log", environment={}, stop_timeout_s=1)
    child = int(wait_for(tmp_path / "engine.log"))
    process.stop()
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child) and not alive(process.child.pid)
    assert "SIGTERM did not end it within 1 s; killed" in (tmp_path / "engine.log").read_text()


def test_an_interrupt_while_stopping_still_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.sleep

    def interrupt(_: float) -> None:
        monkeypatch.setattr("adapters.process.time.sleep", real)
        raise KeyboardInterrupt

    process = start(tmp_path, sys.executable, "-c", PARENT_AND_CHILD)
    child = int(wait_for(tmp_path / "engine.log"))
    monkeypatch.setattr("adapters.process.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        process.stop()
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child) and not alive(process.child.pid)


def worker(tmp_path: Path, hello: str, *answers: str) -> Worker:
    script = "import sys\nfor line in sys.argv[1:]:\n    print(line, flush=True)\n    sys.stdin.readline()"
    command = [sys.executable, "-c", script, hello, *answers]
    return Worker("made-up", command, folder=tmp_path, environment={}, start_timeout_s=60, request_timeout_s=60)


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ('{"hello": 1}', "made-up: the worker's `facts` is 'None', not a dict"),
        ('{"hello": 1, "facts": [1]}', "not a dict"),
        ('{"hello": ' + "9" * 5000 + "}", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_hello_line_that_makes_no_sense(tmp_path: Path, hello: str, why: str) -> None:
    # By way of a file: a command line cannot hold such a line.
    (tmp_path / "hello").write_text(hello)
    command = [sys.executable, "-c", f"print(open({str(tmp_path / 'hello')!r}).read(), flush=True); input()"]
    with pytest.raises(EngineUnavailable, match=re.escape(why)):
        Worker("made-up", command, folder=tmp_path, environment={}, start_timeout_s=60, request_timeout_s=60)


REPLY = {
    "request_id": "r",
    "prompt_len": 2,
    "hit_len": 1,
    "hit_source": "x",
    "position_start": 1,
    "position_source": "y",
    "output_ids": [5],
    "first_logprob": -1,
    "sent_ns": 1,
    "first_token_ns": 2,
    "done_ns": 3,
    "steps": [[1, 2]],
}


def test_a_reply_is_read_with_tuples_for_lists(tmp_path: Path) -> None:
    running = worker(tmp_path, '{"hello": 1, "facts": {}}', json.dumps({"ok": True, "replies": [REPLY]}))
    (reply,) = running.send([TokenRequest(request_id="r", ids=(1, 2))])
    running.close()
    assert (reply.output_ids, reply.steps, reply.hit_len, reply.native) == ((5,), ((1, 2),), 1, {})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({}, "`replies` is 'None', not a list"),
        ({"replies": []}, "not those of the 1 request"),
        ({"replies": [REPLY | {"request_id": "other"}]}, "not those of the 1 request"),
        ({"replies": [5]}, "made-up: reply: "),
        ({"replies": [{"request_id": "r"}]}, "prompt_len: "),
        ({"replies": [REPLY | {"hit_len": "1"}]}, "hit_len: "),
        ({"replies": [REPLY | {"output_ids": None}]}, "output_ids: "),
        ({"replies": [REPLY | {"steps": [[1]]}]}, "steps.0.1: "),
        ({"replies": [REPLY | {"hits": 1}]}, "unknown field hits"),
    ],
)
def test_a_reply_of_wrong_fields_says_which(tmp_path: Path, answer: dict[str, Any], why: str) -> None:
    running = worker(tmp_path, '{"hello": 1, "facts": {}}', json.dumps({"ok": True} | answer))
    with pytest.raises(EngineFailed, match=re.escape(why)):
        running.send([TokenRequest(request_id="r", ids=(1, 2))])
    running.close()


def test_a_reset_that_says_neither_yes_nor_no(tmp_path: Path) -> None:
    running = worker(tmp_path, '{"hello": 1, "facts": {}}', '{"ok": true}')
    with pytest.raises(EngineFailed, match="`reset` is 'None', not a bool"):
        running.reset()
    running.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"granule": "16"}, "made-up: facts: granule: "),
        ({"mode": "?"}, "mode: "),
        ({"groups": None}, "groups: "),
        ({"colour": "red"}, "unknown field colour"),
    ],
)
def test_facts_of_wrong_fields_say_which(change: dict[str, Any], why: str) -> None:
    said = {"version": "1", "device": "cpu", "dtype": "float32", "granule": 1, "context_len": 9, "vocab_size": 9}
    more = {"engine": "made-up", "mode": Mode.WORKER, "groups": ["full"]}
    assert facts_from(said, **more).groups == ("full",)
    with pytest.raises(EngineFailed, match=re.escape(why)):
        facts_from(said, **more | change)
    with pytest.raises(EngineFailed, match="version: "):
        facts_from({}, **more)


def test_a_killed_harness_leaves_no_server(tmp_path: Path) -> None:
    harness = subprocess.Popen(
        [
            sys.executable,
            "-c",
            KILLED_HARNESS,
            str(tmp_path / "log"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert harness.stdout is not None
    server = int(harness.stdout.readline())
    assert wait_for(tmp_path / "log") == "deaf\n"
    assert alive(server)
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait()
    deadline = time.monotonic() + 60
    while alive(server) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(server)


def test_a_named_port_must_be_free() -> None:
    def spec(port: int | None) -> EngineSpec:
        return EngineSpec(engine="made-up", version="1", mode=Mode.LAUNCH, options=Options(), port=port)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineUnavailable, match=f"made-up: port {port} cannot be used"):
            port_for(spec(port))
    assert port_for(spec(port)) == port
    assert port_for(spec(None)) > 0
