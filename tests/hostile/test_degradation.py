"""Without a package, an engine, a network, a wide terminal or UTF-8: each command works, or says what it needs."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import termios
from pathlib import Path

import pytest
from commands import ASCII, UTF8, Ended, hitparity

from harness.cli import app
from harness.data import run_folders
from harness.surroundings import PACKAGES, surroundings

CASE = Path(__file__).parents[2] / "workloads/cases/reports"
EXPERIMENT = """
name = "e"
models = ["tiny-qwen3"]
[[engine]]
name = "law"
label = "größe \\u202e[bold]"
law = "vllm@0.32"
[[workload]]
family = "changed"
shared = 64
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("degraded")
    (folder / "e.toml").write_text(EXPERIMENT, encoding="utf-8")
    return folder / "e.toml"


def every_command(experiment: Path, results: Path) -> list[list[str]]:
    """A sensible call of every command that needs no engine, the run first."""
    trace = str(results / "t.jsonl")
    return [
        ["run", str(experiment), "--dry-run"],
        ["run", str(experiment), "--results", str(results)],
        ["list", "experiments"],
        ["list", "workloads", "changed"],
        ["check", str(next(CASE.glob("*.jsonl")))],
        ["handover", "vllm"],
        ["blocksize", "--check"],
        ["generate", trace, "--requests", "5", "--mean-len", "100"],
        ["simulate", trace, "--law", "vllm@0.32", "--results", str(results / "s"), "--no-requests"],
        ["model", "list"],
        ["doctor", "--no-start"],
    ]


def on_results(results: Path) -> list[list[str]]:
    """Commands that read the run."""
    run, x = f"glob:{results}/e/*", str(results / "x")
    return [
        ["report", run, "--html", f"{x}.html", "--csv", f"{x}.csv"],
        ["compare", run, run],
        ["report", run, "--parquet", f"{x}.parquet"],
    ]


def works_or_says(command: list[str], ended: Ended, needs: str = "") -> None:
    assert not ended.escaped, f"{command}: {ended.escaped}"
    assert "Traceback" not in ended.said, command
    if ended.status == 4:
        assert any(f"{name}, which is not installed" in ended.said for name in needs.split(",")), (command, ended.said)


@pytest.mark.parametrize(("blocked", "environment"), [("matplotlib,torch,pyarrow,ray", UTF8), ("", ASCII)])
def test_every_command_works_or_says_what_it_needs(
    blocked: str, environment: dict[str, str], experiment: Path, tmp_path: Path
) -> None:
    commands = [*every_command(experiment, tmp_path), *on_results(tmp_path)]
    ends = hitparity(*commands, blocked=blocked, environment=environment)
    assert len(ends) == len(commands), ends[-1]
    for command, ended in zip(commands, ends, strict=True):
        works_or_says(command, ended, blocked)
    assert ends[1].status == 0, ends[1].said
    doctor, report, _, parquet = (each.said for each in ends[-4:])
    for name in filter(None, blocked.split(",")):
        row = next(line for line in doctor.splitlines() if f" {name} " in line)
        assert "missing" in row, row
    if environment is ASCII:
        assert "PYTHONUTF8=1" in doctor
        assert "gr??e" in ends[1].said.replace("\ufffd", "?"), ends[1].said
    assert "\u202e" not in ends[1].said
    (run,) = run_folders(tmp_path / "e")
    assert "x.html" in report
    assert "x-cells.csv" in report
    page = (run / "report/report.md").read_text(encoding="utf-8")
    assert ("matplotlib is not installed" in page) == bool(blocked)
    if blocked:
        assert "pip install 'hitparity[parquet]'" in parquet


@pytest.mark.parametrize("terminal", [{"TERM": "dumb"}, {"TERM": "xterm-256color", "NO_COLOR": "1"}])
def test_a_narrow_terminal_without_colours(terminal: dict[str, str], experiment: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))
    said = tmp_path / "said"
    child = os.fork()
    if child == 0:  # reads, so that the command never waits for the terminal
        os.close(slave)
        with said.open("wb") as file:
            while data := _read(master):
                file.write(data)
        os._exit(0)
    hitparity(["run", str(experiment), "--dry-run"], ["doctor", "--no-start"],
              environment=UTF8 | terminal, output=slave)  # fmt: skip
    os.close(slave)
    os.close(master)
    os.waitpid(child, 0)
    text = said.read_text(encoding="utf-8")
    assert text.count('@@[0, ""]') == 2, text[-3000:]
    assert not re.search("\x1b\\[[0-9;]*(3[0-8]|4[0-8]|9[0-7])[;m]", text), "a colour"
    assert "\x1b]" not in text
    if terminal["TERM"] == "dumb":
        assert "\x1b" not in text


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the terminal is gone
        return b""


def test_without_a_network_an_unknown_platform_and_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("harness.surroundings.ROUTES", (tmp_path / "route",))
    (tmp_path / "route").write_text("Iface\tDestination\n0000 lo\n", encoding="utf-8")
    monkeypatch.setattr("platform.system", lambda: "Plan9")
    monkeypatch.setattr("os.access", lambda *_: False)
    found = {each.what: each for each in surroundings(io.StringIO())}
    assert found["network"].found == "none"
    assert "hitparity env create" in found["network"].remedy
    assert "untested" in found["platform"].remedy
    assert "HITPARITY_CACHE" in found["cache"].remedy
    assert set(PACKAGES) < set(found)


def test_a_package_that_everything_needs_is_named() -> None:
    (ended,) = hitparity(["list", "engines"], blocked="gguf")
    assert (ended.status, ended.escaped) == (4, "")
    assert "no command works without the package gguf; install hitparity" in ended.said


def test_every_command_has_help_and_no_engine_is_needed_to_ask(tmp_path: Path) -> None:
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    names += [group.name or "" for group in app.registered_groups]
    commands = [[name.replace("_", "-"), "--help"] for name in names]
    more = [["env", "list"], ["doctor", "--no-start"]]
    *ends, listed, doctor = hitparity(
        *commands,
        *more,
        blocked="matplotlib,torch",
        environment=UTF8 | {"HITPARITY_CACHE": str(tmp_path), "COLUMNS": "400"},
    )
    for command, ended in zip(commands, ends, strict=True):
        assert ended.status == 0, (command, ended)
        assert "Usage" in ended.said
    for ended in (listed, doctor):
        assert (ended.status, ended.escaped) == (0, "")
    assert "hitparity env create vllm --version" in doctor.said
