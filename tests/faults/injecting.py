"""One experiment on a faulty engine beside a law, run by the real runner; and what is left of it afterwards."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.experiment import load_experiment
from harness.outcome import exit_code
from harness.plan import Cell, plan
from harness.records import CellManifest, RequestRecord
from harness.runner import TRACEBACK_FILE, Runner, open_run
from harness.store import load_run
from vocabulary.errors import ExitCode

FAKE = Path(__file__).with_name("fake_engine.py")
ENGINES = {
    "vllm": 'name = "vllm"\npython = "{fake}"',
    "sglang": 'name = "sglang"\npython = "{fake}"',
    "llama.cpp": 'name = "llama.cpp"\nbinary = "{fake}"',
    "worker": 'name = "reference"\nlaw = "sglang@0.5.23"\npython = "{fake}"',
}
"""Protocol to the entry of an experiment; the reference engine's worker stands for all workers."""
EXPERIMENT = """
name = "e"
models = ["tiny-qwen3"]

[[engine]]
label = "faulty"
{entry}
start_timeout_s = {start_timeout_s}
request_timeout_s = {request_timeout_s}
stop_timeout_s = 0.3
environment = {{ {environment} }}

[[engine]]
name = "law"
label = "neighbour"
law = "vllm@0.32"

[[workload]]
family = "changed"
shared = 64
"""


@dataclass(frozen=True)
class Fault:
    """What is injected, where, and what a user is told."""

    name: str
    message: str
    """Shown to the user; `...` stands for what varies."""
    code: ExitCode
    on: tuple[str, ...] = tuple(ENGINES)
    """Protocols it can be injected into."""
    start_timeout_s: float = 60
    request_timeout_s: float = 60


@dataclass
class Outcome:
    """What a run left behind."""

    code: ExitCode
    faulty: CellManifest
    neighbour: CellManifest
    records: list[RequestRecord]
    answered: int
    """Completions that the engine answered to their end, by its own count."""
    said: str
    """Everything that a user is told about the faulty cell."""
    traceback: str = ""
    left_over: list[str] = field(default_factory=list)
    """Command lines of processes of the engine that are still there."""


class Quiet:
    """A progress that only remembers remarks."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    def group(self, group: object, cells: int) -> None: ...

    def request(self, cell: object, record: RequestRecord) -> None: ...

    def remark(self, cell: Cell, text: str) -> None:
        self.remarks.append(text)

    def cell(self, cell: object, manifest: CellManifest) -> None: ...


def fake_python(folder: Path) -> Path:
    """An executable that passes for an engine's Python or server: `-c` is answered at once, all else is the fake."""
    path = folder / "fake-python"
    if not path.exists():
        script = (
            f'#!/bin/sh\n[ "$1$2" = -P-c ] && exit 1\n[ "$1" = -c ] && exit\nexec {sys.executable} -IS {FAKE} "$@"\n'
        )
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)
    return path


def experiment_file(folder: Path, protocol: str, fault: str, *, start_timeout_s: float = 60,
                    request_timeout_s: float = 60, after: int = 5, more: str = "") -> Path:  # fmt: skip
    """An experiment on the fake engine; processes that it starts carry `folder` in their environment."""
    environment = {
        "HITPARITY_FAULT": fault,
        "HITPARITY_FAULT_AFTER": str(after),
        "HITPARITY_FAULT_ANSWERED": str(folder / "answered"),
    }
    path = folder / "e.toml"
    path.write_text(
        EXPERIMENT.format(
            entry=ENGINES[protocol].format(fake=fake_python(folder)) + more,
            start_timeout_s=start_timeout_s,
            request_timeout_s=request_timeout_s,
            environment=", ".join(f'{key} = "{value}"' for key, value in environment.items()),
        ),
        encoding="utf-8",
    )
    return path


def run(path: Path, results: Path, *, resume: bool = False, progress: Quiet | None = None) -> tuple[Path, ExitCode]:
    """Run an experiment file in this process; its run folder and exit code."""
    experiment = load_experiment(path)
    groups = plan(experiment)
    folder = open_run(experiment, path, groups, results, resume=resume)
    return folder, Runner(experiment, path, folder, progress or Quiet()).run(groups)


def inject(folder: Path, protocol: str, fault: Fault, more: str = "") -> Outcome:
    """Run the workload on an engine with this fault."""
    path = experiment_file(folder, protocol, fault.name, start_timeout_s=fault.start_timeout_s,
                           request_timeout_s=fault.request_timeout_s, more=more)  # fmt: skip
    where, code = run(path, folder / "r")
    return outcome(folder, where, code)


def outcome(folder: Path, where: Path, code: ExitCode) -> Outcome:
    """Read back what a run left in `where`; engines' processes carry `folder` in their environment."""
    done = load_run(where)
    assert code == exit_code(done)
    cells = {cell.engine_label: cell for cell in done.cells}
    records = [record for record in done.requests if record.engine_label == "faulty"]
    faulty = cells["faulty"]
    notes = (faulty.facts or {}).get("notes", [])
    said = [faulty.why, *(f.detail for f in faulty.findings), *(f.detail for r in records for f in r.findings), *notes]
    log = where / faulty.engine_log
    traceback = log.with_name(TRACEBACK_FILE)
    answered = folder / "answered"
    return Outcome(
        code=code,
        faulty=faulty,
        neighbour=cells["neighbour"],
        records=records,
        answered=len(answered.read_text(encoding="utf-8").splitlines()) if answered.exists() else 0,
        said="\n".join(said) + (f"\n{log.read_text(encoding='utf-8', errors='replace')}" if log.exists() else ""),
        traceback=traceback.read_text(encoding="utf-8") if traceback.exists() else "",
        left_over=left_over(folder),
    )


def left_over(folder: Path, patience_s: float = 20) -> list[str]:
    """Processes whose environment names `folder`, once a killed one has had time to go; they are killed."""
    deadline = time.monotonic() + patience_s
    while (found := _processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return list(found.values())


def _processes_of(folder: Path) -> dict[int, str]:
    mark, found = f"HITPARITY_FAULT_ANSWERED={folder}/".encode(), {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # ended meanwhile, or a zombie
            continue
    return found


def shown(message: str, said: str) -> bool:
    """Whether the parts of a message between its `...` occur in this order."""
    at = 0
    for part in message.split("..."):
        at = said.find(part.strip(), at)
        if at < 0:
            return False
        at += len(part.strip())
    return True
