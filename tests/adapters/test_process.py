"""Engine processes: how a start fails, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapters.base import EngineSpec, Options
from adapters.process import EngineProcess, port_for
from vocabulary.engine import Mode
from vocabulary.errors import EngineUnavailable

PARENT_AND_CHILD = """
import subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
print(child.pid, flush=True)
time.sleep(60)
"""
KILLED_HARNESS = """
import sys, time
from pathlib import Path
from adapters.process import EngineProcess
command = [sys.executable, "-c", "import time; time.sleep(60)"]
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
    [("raise SystemExit(7)", "exited with status 7"), ("import os; os.kill(os.getpid(), 9)", "SIGKILL")],
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


def test_stop_reaches_a_child_that_ignores_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.process.STOP_GRACE_S", 1.0)
    process = start(tmp_path, sys.executable, "-c", PARENT_AND_CHILD)
    child = int(wait_for(tmp_path / "engine.log"))
    process.stop()
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child) and not alive(process.child.pid)


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
    assert alive(server)
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait()
    deadline = time.monotonic() + 10
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
