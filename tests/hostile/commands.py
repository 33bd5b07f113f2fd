"""The command itself, as a user would run it, in an environment of a test's choice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DRIVER = Path(__file__).with_name("several_commands.py")
UTF8 = {"PYTHONUTF8": "1"}
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    escaped: str
    said: str


def hitparity(
    *commands: list[str], blocked: str = "", environment: dict[str, str] = UTF8, output: int | None = None
) -> list[Ended]:
    """Run commands in a fresh interpreter of that environment; `output`: a terminal in place of a pipe."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), blocked],
        input="".join(json.dumps(command) + "\n" for command in commands).encode(),
        stdout=output or subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={key: value for key, value in os.environ.items() if key not in ("COLUMNS", "TERM")} | environment,
        timeout=300,
        check=False,
    )
    parts = (done.stdout or b"").decode("utf-8").split("\n@@")
    ends = [part.partition("\n") for part in parts[1:]]
    said = [parts[0], *(rest for _, _, rest in ends)]
    return [Ended(*json.loads(end), text) for (end, _, _), text in zip(ends, said, strict=False)]
