"""Real engines, killed for real in the middle of a run: llama.cpp always, vLLM and SGLang with HITPARITY_FAULTS=all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from injecting import ENGINES, Quiet, experiment_file, outcome, run, shown

from benchmarks.soak import descendants
from harness.records import RequestRecord
from harness.store import load_run
from vocabulary.errors import ExitCode

MESSAGE = "was killed by signal SIGKILL...engine.log"
CHOSEN = ("llama.cpp", "reference", "vllm", "sglang") if os.environ.get("HITPARITY_FAULTS") == "all" else ("llama.cpp",)
KILLED_AFTER = 6


class Killer(Quiet):
    """Kills the engine's first process, and only that, once some requests are written."""

    count = 0

    def request(self, cell: object, record: RequestRecord) -> None:
        self.count += record.engine_label == "faulty"
        if self.count == KILLED_AFTER:
            leader = next(pid for pid in descendants(os.getpid()) if os.getpgid(pid) == pid and not is_guard(pid))
            os.kill(leader, signal.SIGKILL)


def is_guard(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/sh\0")


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.live(name),
                pytest.mark.fault("killed in the middle of a run, resumed", f"{name} (real)", MESSAGE, 4),
            ],
        )
        for name in CHOSEN
    ],
)
def test_killed_in_the_middle_of_a_run_then_resumed(
    engine: str, tmp_path: Path, engine_python: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    law = '\nlaw = "sglang@0.5.23"' if engine == "reference" else ""
    monkeypatch.setitem(ENGINES, engine, f'name = "{engine}"\npython = "{engine_python(engine)}"{law}')
    path = experiment_file(tmp_path, engine, "", start_timeout_s=300, request_timeout_s=300)
    folder, code = run(path, tmp_path / "r", progress=Killer())
    done = outcome(tmp_path, folder, code)
    assert code is ExitCode.UNAVAILABLE and shown(MESSAGE, done.faulty.why), done.faulty.why
    assert len(done.records) == KILLED_AFTER
    assert not done.left_over and not done.traceback
    _, code = run(path, tmp_path / "r", resume=True)
    assert code is ExitCode.CLEAN
    assert len([record for record in load_run(folder).requests if record.engine_label == "faulty"]) == 13
