"""Writes docs/faults.md from the `fault` marks of the tests: `python tests/faults/page.py`; `--print` shows it only."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"
ADAPTERS = ("environments", "llama_cpp", "llama_cpp_python", "sglang", "vllm")
TESTED = ("tests/faults", *(f"tests/adapters/test_{name}.py" for name in ADAPTERS))
CODES = {0: "0", 1: "1 findings", 2: "2 usage", 3: "3 inconclusive", 4: "4 unavailable", 130: "130 interrupted"}
HEAD = """# Faults that are injected and survived

Made by `python tests/faults/page.py` from the tests that inject them; do not edit. Each fault happens in real
processes: an engine that speaks a protocol and misbehaves on demand (`tests/faults/fake_engine.py`), a real engine that
is killed, or the command itself under a signal or a limit. The tests assert the words a user is told (`...` stands for
what varies), the exit code, that no process is left, that every answered request has its line, and that the other
engines of a run are measured as if nothing had happened.

CI injects a fault of several protocols into one of them; `HITPARITY_FAULTS=all pytest tests/faults` injects it into
each. `HITPARITY_FAULT_ROUNDS=100` ends the harness at a hundred random moments.

| fault | in | what the user is told | exit code |
|---|---|---|---|
"""


class Collector:
    """A pytest plugin that keeps the marks."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, ...], None] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("fault"):
                what, where, message, code = mark.args
                self.rows[
                    what, where, f"`{message.replace('|', chr(92) + '|')}`" if message else "nothing", CODES[code]
                ] = None


def page() -> str:
    """The whole page."""
    os.environ["HITPARITY_FAULTS"] = "all"
    collector = Collector()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", *(str(ROOT / each) for each in TESTED)]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(options, plugins=[collector])
    if code != pytest.ExitCode.OK:
        raise SystemExit(said.getvalue())
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in collector.rows) + f"\n{len(collector.rows)} faults.\n"


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
