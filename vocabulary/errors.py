"""The exception tree. Each class carries the exit code of the command that meets it (docs/commands.md).

A message says what happened, to which engine, file or key, and what to do next.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status means."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    INCONCLUSIVE = 3
    UNAVAILABLE = 4
    INTERRUPTED = 130
    """Ctrl-C, by the shell's convention (128 + SIGINT)."""


class HitparityError(Exception):
    """Base of every error that a user may see; printed without a traceback."""

    exit_code = ExitCode.USAGE


class UsageError(HitparityError):
    """The command line, an experiment file, a model folder or another input is wrong."""


class EngineUnavailable(HitparityError):
    """An engine or its environment is missing or cannot be started."""

    exit_code = ExitCode.UNAVAILABLE


class EngineFailed(HitparityError):
    """A running engine died, hung, or answered something that is not its protocol."""

    exit_code = ExitCode.UNAVAILABLE


class RequestRefused(HitparityError):
    """The engine is alive and refused this one request (bad token ID, too long a prompt)."""


class LawDoesNotCover(HitparityError):
    """No law states the rule of this engine, version, layer groups and options; nothing is guessed."""
