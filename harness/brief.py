"""The short Markdown report: what fits a CI step summary, without figures and without every request."""

from __future__ import annotations

import os
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.overview import Overview
from harness.report import escape
from harness.wording import count, milliseconds, number, percent
from vocabulary.errors import UsageError
from vocabulary.ledger import Cause

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""GitHub Actions names a file in it; Markdown appended there is shown on the run's page."""
FINDINGS = 50
"""Findings listed; a step summary holds 1 MiB."""


def brief_markdown(seen: Overview) -> str:
    """What was compared, what differs, why, what is not explained; the same run gives the same text."""
    environment = Environment(
        loader=PackageLoader("harness"),
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    return environment.get_template("brief.md.j2").render(
        seen=seen,
        causes=[cause for cause in Cause if any(cause in total.tokens_by_cause for total in seen.totals)],
        several_models=len({total.model for total in seen.totals}) > 1,
        shown=FINDINGS,
        count=count,
        milliseconds=milliseconds,
        number=number,
        percent=percent,
    )


def append_step_summary(text: str) -> Path | None:
    """Append Markdown to the file that CI names; None where no CI names one. Raises UsageError if it fails."""
    named = os.environ.get(SUMMARY_VARIABLE)
    if not named:
        return None
    try:
        with Path(named).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(
            f"{named}: {SUMMARY_VARIABLE} names it, but it cannot be written: {error.strerror or error}; unset the "
            f"variable to go without"
        ) from None
    return Path(named)
