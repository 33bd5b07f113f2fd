"""What a run's exit code is made of."""

from __future__ import annotations

from harness.records import FindingKind
from harness.store import Run
from vocabulary.errors import ExitCode

GRAVEST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.UNAVAILABLE,
    ExitCode.USAGE,
    ExitCode.FINDINGS,
    ExitCode.INCONCLUSIVE,
)
INCONCLUSIVE = frozenset({FindingKind.COLD_DIFFERS, FindingKind.NO_WARM_HIT})
"""Findings that say nothing against the engine's lookup, but leave a question open."""


def exit_code(run: Run, *, interrupted: bool = False) -> ExitCode:
    """The gravest thing that happened in a run, whichever invocation measured it."""
    codes = {cell.exit_code for cell in run.cells}
    if any(request.findings for request in run.requests):
        codes.add(ExitCode.FINDINGS)
    if interrupted:
        codes.add(ExitCode.INTERRUPTED)
    return next((code for code in GRAVEST_FIRST if code in codes), ExitCode.CLEAN)
