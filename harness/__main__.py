"""The command `hitparity`, also as `python -m harness`. Signals first: to import the commands takes half a second."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from harness.interrupt import say
from vocabulary.errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Run the command; Ctrl-C and SIGTERM end it with a line and status 130 at any time."""
    for number in SIGNALS:
        signal.signal(number, _leave)
    try:
        from harness.cli import main as command
    except ModuleNotFoundError as error:
        if (name := (error.name or "").partition(".")[0]) in ("harness", "adapters", "vocabulary", ""):
            raise
        say(f"no command works without the package {name}; install hitparity with its dependencies (pip install -e .)")
        sys.exit(ExitCode.UNAVAILABLE)

    for number in SIGNALS:
        signal.signal(number, _interrupt)
    try:
        command()
    finally:
        for number in SIGNALS:  # the exit status is decided, and all is written
            signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing has begun, and an exception could be swallowed by the import of a C extension."""
    say("interrupted before anything was begun")
    os._exit(ExitCode.INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    say("interrupted")
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
