"""`hitparity baseline`: compare a run with the committed baselines, and replace them when the change is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.baseline import BASELINES, Checked, accept, check
from harness.outcome import GRAVEST_FIRST
from harness.store import Run, load_run
from harness.terminal import terminal
from harness.wording import plain
from vocabulary.errors import ExitCode, UsageError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: DIR/<experiment>/<run>.")]
Baselines = Annotated[Path, typer.Option("--baselines", metavar="DIR", help="Folder of the baselines.")]


@app.command("check")
def check_run(run: RunFolder, baselines: Baselines = BASELINES) -> None:
    """Compare every engine configuration of a run with its baseline; hits, starts and ledgers to the token.

    Exit codes: 0 all the same, 1 something changed, 2 a baseline of other workloads, 3 no baseline or incomplete.
    """
    found = check(load_run(run), baselines)
    _show(found)
    codes = {_code(each) for each in found} or {ExitCode.INCONCLUSIVE}
    raise typer.Exit(next((code for code in GRAVEST_FIRST if code in codes), ExitCode.CLEAN))


@app.command("accept")
def accept_run(
    run: RunFolder,
    baselines: Baselines = BASELINES,
    label: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Only this engine configuration. May be given again.")
    ] = None,
) -> None:
    """Make a run the baseline of its engine configurations, showing first what changes."""
    loaded = load_run(run)
    for each in _chosen(loaded, baselines, label or []):
        _show([each])
        accept(loaded, each.label, each.folder)
        terminal().print(f"accepted: {escape(str(each.folder))}", soft_wrap=True)


def _chosen(run: Run, baselines: Path, labels: list[str]) -> list[Checked]:
    found = check(run, baselines)
    known = {each.label for each in found}
    if unknown := [label for label in labels if label not in known]:
        raise UsageError(f"{run.folder}: no engine configuration {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return [each for each in found if not labels or each.label in labels]


def _code(checked: Checked) -> ExitCode:
    if checked.comparison:
        return checked.comparison.exit_code
    return ExitCode.USAGE if checked.unlike else ExitCode.INCONCLUSIVE


def _show(found: list[Checked]) -> None:
    console = terminal()
    for each in found:
        name = escape(plain(each.label))
        if each.unlike:
            console.print(
                f"{name}: not comparable with {escape(str(each.folder))}: {escape(plain(each.unlike))}. If the change "
                f"is wanted, replace the baseline with `hitparity baseline accept`",
                soft_wrap=True,
            )
            continue
        if each.comparison is None:
            console.print(
                f"{name}: no baseline at {escape(str(each.folder))}; make one with `hitparity baseline accept`",
                soft_wrap=True,
            )
            continue
        sends = sum(cell.sends for cell in each.comparison.cells)
        console.print(f"{name}: {each.comparison.verdict} ({sends} sends)", soft_wrap=True)
        for sentence in each.comparison.why:
            console.print(f"  {escape(plain(sentence))}", soft_wrap=True)
