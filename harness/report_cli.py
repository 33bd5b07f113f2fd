"""`hitparity report`: a run's tables again, and the files that people and CI systems read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from harness.terminal import terminal
from vocabulary.errors import UsageError

if TYPE_CHECKING:
    from harness.store import Run

PAGE = "report.html"


def report(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder: DIR/<experiment>/<run>; for --csv and --parquet any.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Markdown with figures, and the page. Default: RUN/report.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print every request, sentinels and controls included.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="F", help="Short Markdown without figures, as a CI step summary.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="F", help="One page that needs no network.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="F", help="JUnit XML: a test case per cell and law.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="F", help="The overview as JSON.")] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="F.csv", help="One row per request; one per cell in F-cells.csv.")
    ] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="F.parquet", help="The same two tables, typed.")] = None,
) -> None:
    """Print a run's tables again and write its reports; with a file option, only the files asked for.

    Where GITHUB_STEP_SUMMARY names a file, the short Markdown is appended to it.
    """
    written = _tables(run_folder, csv, parquet)
    asked = ((markdown, _brief), (html, _page), (junit, _junit), (json, _json))
    files = [(path, make) for path, make in asked if path is not None]
    if written and not files and out is None:  # tables alone can be of many runs
        _say(written)
        return
    from harness.brief import append_step_summary
    from harness.report import write_report
    from harness.store import load_run
    from harness.table import run_tables, widened

    done = load_run(run_folder)
    if out is not None or not (files or written):
        folder = out or run_folder / "report"
        written += [write_report(done, folder)[0], write_page(done, folder / PAGE)]
    written += [_write(path, make(done)) for path, make in files]
    tables = run_tables(done.cells, done.requests, full=full, planned=done.manifest.cells)
    console = widened(terminal(), tables)
    for remark in done.remarks:
        console.print(escape(remark), soft_wrap=True)
    for table in tables:
        console.print(table)
    if summary := append_step_summary(_brief(done)):
        written.append(summary)
    _say(written)


def write_page(run: Run, path: Path) -> Path:
    """Write the HTML report of a run; UsageError when the file cannot be written."""
    return _write(path, _page(run))


def _tables(run_folder: Path, csv: Path | None, parquet: Path | None) -> list[Path]:
    if csv is None and parquet is None:
        return []
    from harness.data import load_tables, write_csv, write_parquet

    for path, suffix in ((csv, ".csv"), (parquet, ".parquet")):
        if path is not None and path.suffix.lower() != suffix:
            raise UsageError(f"{path}: name a file that ends in {suffix}, so that readers know what is in it")
    tables = load_tables(run_folder)
    console = terminal()
    for remark in tables.remarks:
        console.print(escape(remark), soft_wrap=True)
    written = []
    for path, write in ((csv, write_csv), (parquet, write_parquet)):
        if path is not None:
            written.append(write(tables.requests, path))
            written.append(write(tables.cells, path.with_name(f"{path.stem}-cells{path.suffix}")))
    return written


def _brief(run: Run) -> str:
    from harness.brief import brief_markdown
    from harness.overview import overview

    return brief_markdown(overview(run))


def _page(run: Run) -> str:
    from harness.page import page

    return page(run)


def _junit(run: Run) -> str:
    from harness.junit import junit_xml

    return junit_xml(run)


def _json(run: Run) -> str:
    from harness.overview import overview_json

    return overview_json(run)


def _write(path: Path, text: str) -> Path:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; choose another file") from None
    return path


def _say(written: list[Path]) -> None:
    console = terminal()
    for path in written:
        console.print(f"report:  {escape(str(path))}", soft_wrap=True)
