"""The command line. Each command reads its input, calls one function of the harness and prints what came of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

import adapters.env_cli
import checkpoints.cli
import harness.baseline_cli
import harness.block_size_cli
import harness.cases_cli
import harness.compare_cli
import harness.explain_cli
import harness.fuzz_cli
import harness.generate_cli
import harness.gpu_check_cli
import harness.handover_cli
import harness.import_cli
import harness.latency_cli
import harness.report_cli
import harness.simulate_cli
from adapters import exposure
from harness.experiment import load_experiment
from harness.listing import Topic, listing
from harness.plan import Group, plan
from harness.progress import ConsoleProgress
from harness.store import load_run
from harness.surroundings import PACKAGES, surroundings
from harness.terminal import error_terminal, never_fail_to_encode, terminal
from vocabulary.errors import ExitCode, HitparityError, UsageError

app = typer.Typer(
    name="hitparity",
    help="Send the same token IDs to several LLM engines and explain, token by token, what each reuses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 clean, 1 findings, 2 usage, 3 inconclusive, 4 engine or environment unavailable, "
    "130 interrupted.",
)
app.add_typer(adapters.env_cli.app, name="env", help="Build, list and remove engine environments.")
app.add_typer(harness.baseline_cli.app, name="baseline", help="Compare a run with committed baselines, or accept it.")
app.add_typer(checkpoints.cli.app, name="model", help="Make and check model folders that every engine can load.")

app.command()(harness.cases_cli.check)
app.command()(harness.fuzz_cli.fuzz)
app.command()(harness.explain_cli.explain)
app.command()(harness.block_size_cli.blocksize)
app.command()(harness.handover_cli.handover)
app.command()(harness.latency_cli.latency)
app.command()(harness.report_cli.report)
app.command()(harness.compare_cli.compare)
app.command()(harness.simulate_cli.simulate)
app.command()(harness.gpu_check_cli.gpu_check)
app.command()(harness.generate_cli.generate)
app.command("import")(harness.import_cli.import_log)

Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Folder that runs are written below.", show_default=True)
]


@app.command()
def run(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="A TOML file, or a name of `hitparity list experiments`.")
    ],
    results: Results = Path("results"),
    only: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="Run only cells with this engine, label, model or workload.")
    ] = [],  # noqa: B006  (typer copies it)
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest run; complete cells stay.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Stop at the first hit that is unexplained, unbacked, too long or forbidden."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Print every request, sentinels and controls included.")] = False,
) -> None:
    """Run an experiment: every engine on every workload, with ledgers, tables and a report."""
    from harness.catalogue import find_experiment
    from harness.report import write_report
    from harness.runner import Runner, open_run
    from harness.table import run_tables, widened

    path = find_experiment(experiment)
    loaded = load_experiment(path)
    groups = plan(loaded, only)
    for group in groups:
        for warning in exposure.warnings(group.spec):
            error_terminal().print(f"warning: {escape(warning)}", soft_wrap=True)
    if dry_run:
        _print_plan(groups)
        return
    folder = open_run(loaded, path, groups, results, resume=resume)
    progress = ConsoleProgress()
    try:
        code = Runner(loaded, path, folder, progress, strict=strict).run(groups)
    finally:
        progress.stop()
    done = load_run(folder)
    written = write_report(done, folder / "report")
    page = harness.report_cli.write_page(done, folder / "report" / harness.report_cli.PAGE)
    tables = run_tables(done.cells, done.requests, full=full, planned=done.manifest.cells)
    console = widened(terminal(), tables)
    for table in tables:
        console.print(table)
    console.print(f"records: {escape(str(folder))}", soft_wrap=True)
    console.print(f"report:  {escape(str(written[0]))}, {escape(page.name)} beside it", soft_wrap=True)
    raise typer.Exit(code)


@app.command("list")
def list_topic(
    topic: Annotated[Topic, typer.Argument(help="What to list.")],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="With workloads: one family, its parameters and prompts.")
    ] = None,
) -> None:
    """List engines, laws, workloads, causes or ready experiments."""
    terminal().print(listing(topic, name))


@app.command()
def doctor(
    engines: Annotated[list[str] | None, typer.Argument(metavar="[ENGINE]...", help="Default: all of them.")] = None,
    no_start: Annotated[bool, typer.Option("--no-start", help="Only look for environments.")] = False,
) -> None:
    """Start each engine on a tiny model: version, granule, cached-token flags, reset. About a minute an engine."""
    from harness.doctor import ENGINES, examine, installed

    console = terminal()
    if not engines:
        around = Table("here", "found", "remedy", title="Around hitparity", title_justify="left")
        for each in surroundings(sys.stdout):
            around.add_row(each.what, escape(each.found), escape(each.remedy))
        console.print(around)
    table = Table("engine", "version", "granule", "hit from", "start from", "hit shown", "reset works", "remarks")
    codes = set()
    if unknown := [engine for engine in engines or () if engine not in ENGINES]:
        raise UsageError(f"unknown engine {unknown[0]!r}; known: {', '.join(ENGINES)}")
    for engine in engines or ENGINES:
        found = installed(engine) if no_start else examine(engine)
        if engines or found.code is not ExitCode.UNAVAILABLE:  # an engine nobody asked for may be missing
            codes.add(found.code)
        facts, looked = found.facts, bool(found.hit_source)
        table.add_row(
            engine,
            facts.version if facts else "-",
            str(facts.granule) if facts else "-",
            escape(found.hit_source or "-"),
            escape(found.position_source or "-"),
            _yes(found.hit_shown) if looked else "-",
            _yes(found.reset_works) if looked else "-",
            escape("\n".join(found.remarks)),
        )
    console.print(table)
    raise typer.Exit(max(codes, default=ExitCode.CLEAN))


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _print_plan(groups: tuple[Group, ...]) -> None:
    table = Table("engine", "mode", "model", "workloads", title="Engine starts, in order", title_justify="left")
    for group in groups:
        cells = ", ".join(cell.workload.name for cell in group.cells)
        table.add_row(escape(group.engine_label), group.spec.mode, escape(group.model), escape(cells))
    console = terminal()
    console.print(table)
    console.print(f"{sum(len(group.cells) for group in groups)} cells; nothing was started")


def main() -> None:
    """Entry point: one sentence and the right exit code for every expected error."""
    never_fail_to_encode()
    try:
        app(standalone_mode=True)
    except HitparityError as error:
        _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if (name := (error.name or "").partition(".")[0]) not in PACKAGES:
            raise
        _fail(f"this needs {name}, which is not installed; {PACKAGES[name].remedy}", ExitCode.UNAVAILABLE)
    except KeyboardInterrupt:
        _fail("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:  # the reader had enough, as `head` does; records and report are written by then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.CLEAN)


def _fail(message: str, code: ExitCode) -> None:
    error_terminal().print(f"hitparity: {escape(message)}", soft_wrap=True)
    sys.exit(code)
