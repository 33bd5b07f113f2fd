"""`hitparity simulate`: a trace through laws, at trace scale."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from harness.fuzz_cli import parse_options
from harness.terminal import error_terminal, terminal
from vocabulary.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from harness.simulate.curve import Curve
    from harness.simulate.job import CellResult, Job
    from harness.simulate.sweep import Sweep

LOCAL = "local"


def simulate(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, plain or .gz.")],
    law: Annotated[
        list[str], typer.Option("--law", metavar="ENGINE@VERSION[:KEY=VALUE;...]", help="Law, with its own options.")
    ] = [],  # noqa: B006  (typer copies it)
    trace_format: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="Default: what the first line looks like.")
    ] = None,
    option: Annotated[
        list[str],
        typer.Option("--option", metavar="KEY=VALUE[|VALUE...]", help="For every law that reads it; | makes cells."),
    ] = [],  # noqa: B006
    curve: Annotated[
        list[int], typer.Option("--curve", metavar="BLOCK", min=1, help="Hit rate over all pool sizes, one pass.")
    ] = [],  # noqa: B006
    gains: Annotated[bool, typer.Option("--gains", help="Also what each changed option would save.")] = False,
    outputs: Annotated[bool, typer.Option("--outputs", help="Keep answers of the trace's lengths too.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    divide: Annotated[int, typer.Option(min=1, help="Divide all lengths by N.")] = 1,
    block_len: Annotated[int | None, typer.Option(min=1, help="Tokens in a trace block, where it is open.")] = None,
    skip_malformed: Annotated[bool, typer.Option("--skip-malformed", help="Count bad rows and go on.")] = False,
    bucket: Annotated[
        int | None, typer.Option("--bucket", metavar="SECONDS", min=1, help="Width of the totals over time.")
    ] = None,
    over_time: Annotated[bool, typer.Option("--over-time", help="Print totals over time.")] = False,
    results: Annotated[Path, typer.Option(metavar="DIR", help="Folder that sweeps are written below.")] = Path(
        "results/simulate"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the trace's latest sweep.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: a core each.")] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="Run cells on Ray: its address, or `local`.")
    ] = None,
    no_requests: Annotated[bool, typer.Option("--no-requests", help="Write totals, not every request.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Every request of a trace through every law: ledgers, totals by cause, and what would help."""
    from harness.simulate import show
    from harness.simulate.sweep import open_sweep, run_local
    from harness.simulate.trace_file import TraceFile

    if not law and not curve:
        raise UsageError(
            "nothing to simulate; give --law ENGINE@VERSION (see `hitparity list laws`), --curve BLOCK, or both"
        )
    file = TraceFile(
        path=trace, format=trace_format, block_len=block_len, skip_malformed=skip_malformed, limit=limit, divide=divide
    )
    errors = error_terminal()
    _announce(file, errors)
    failures, done, sweep = [], dict[str, "CellResult"](), None
    if law:
        jobs = _jobs(file, law, option, outputs, bucket, gains)
        sweep = open_sweep(results, jobs, resume=resume, requests=not no_requests)
        watcher = ConsoleWatcher(errors, len(sweep.jobs), len(sweep.jobs) - len(sweep.left()))
        try:
            if ray is None:
                failures = run_local(sweep, watcher, workers)
            else:
                from harness.simulate.on_ray import run_on_ray

                failures = run_on_ray(sweep, watcher, None if ray == LOCAL else ray)
        finally:
            watcher.stop()
        done = sweep.done()
    curves = {unit: _curve(file, unit) for unit in dict.fromkeys(curve)}
    sizes = {unit: _sizes(made) for unit, made in curves.items()}
    if as_json:
        typer.echo(json.dumps(show.as_json(done, curves, sizes), indent=1))
    else:
        _print(done, curves, sizes, over_time, sweep)
    if failures:
        for failure in failures:
            errors.print(escape(f"hitparity: {failure.cell}: {failure.why}"), soft_wrap=True)
        raise typer.Exit(ExitCode.USAGE)


def _print(
    done: Mapping[str, CellResult],
    curves: Mapping[int, Curve],
    sizes: Mapping[int, list[int]],
    over_time: bool,
    sweep: Sweep | None,
) -> None:
    from harness.simulate import show

    console = terminal()
    if done:
        console.print(show.results_table(done))
    for name, base in done.items():
        changed = [cell for cell in done.values() if cell.base == name]
        if changed:
            console.print(show.gains_table(base, changed))
        if over_time and base.base is None:
            console.print(show.over_time_table(base))
        if base.first_refusal and base.base is None:
            console.print(escape(f"{show.label(base)} refused first: {base.first_refusal}"), soft_wrap=True)
    for unit, made in curves.items():
        console.print(show.curve_table(made, sizes[unit]))
        if made.whole:
            console.print(
                f"{made.whole:,} of {made.requests:,} prompts end on a block boundary; the engine moves a few blocks "
                "differently for them, the curve does not"
            )
    if sweep is not None:
        console.print(f"records: {escape(str(sweep.folder))}", soft_wrap=True)


def _announce(file: Any, errors: Console) -> None:
    from harness.simulate.feed import reader_of

    errors.print(escape(f"{file.path}: {reader_of(file).blind_below}"), soft_wrap=True)


def _jobs(file: Any, laws: list[str], options: list[str], outputs: bool, bucket: int | None, gains: bool) -> list[Job]:
    from harness.simulate.gains import variants
    from harness.simulate.job import Job
    from reference_engine.laws.registry import make_law

    jobs: list[Job] = []
    for text in laws:
        law_id, given = _law(text)
        for chosen in _combined(law_id, options):
            job = Job(trace=file, law=law_id, options=chosen | given, outputs=outputs, bucket_s=bucket)
            make_law(job.law, job.options)  # a mistake is said now, not by a worker
            jobs += [job, *(variants(job) if gains else [])]
    _all_read(laws, options)
    return jobs


def _law(text: str) -> tuple[str, dict[str, Any]]:
    law_id, _, rest = text.partition(":")
    return law_id, _parsed(each for each in rest.split(";") if each)


def _parsed(texts: Iterable[str]) -> dict[str, Any]:
    options = parse_options(texts)
    if isinstance(groups := options.get("groups"), str):
        options["groups"] = groups.split(",")
    return options


def _combined(law_id: str, options: list[str]) -> list[dict[str, Any]]:
    """Every combination of the values that `|` separates, of the options this law reads."""
    from harness.explain.counterfactual import known_options

    combined: list[dict[str, Any]] = [{}]
    for text in options:
        key, equals, values = text.partition("=")
        if key not in ("groups", *known_options(law_id)):
            continue
        choices = [_parsed([f"{key}{equals}{value}"]) for value in values.split("|")]
        combined = [before | chosen for before in combined for chosen in choices]
    return combined


def _all_read(laws: list[str], options: list[str]) -> None:
    from harness.explain.counterfactual import known_options

    read = {"groups"}.union(*(known_options(text.partition(":")[0]) for text in laws))
    if unread := [text for text in options if text.partition("=")[0] not in read]:
        raise UsageError(f"--option {unread[0]}: none of these laws reads it; they read {', '.join(sorted(read))}")


def _curve(file: Any, unit: int) -> Curve:
    from harness.simulate.curve import curve
    from harness.simulate.feed import numbered, reader_of

    made = curve(numbered(reader_of(file), file.divide), unit)
    if not made.requests:
        raise UsageError(f"{file.path}: holds no request")
    return made


def _sizes(curve: Curve) -> list[int]:
    """Powers of two in tokens, from a sixteenth of a percent of what is needed to all of it."""
    most = curve.enough * curve.unit
    sizes, size = [], 1 << max((most >> 11).bit_length(), 10)
    while size < most:
        sizes.append(size)
        size *= 2
    return sizes


class ConsoleWatcher:
    """One lasting line per cell on stderr; in a terminal, what runs now too."""

    def __init__(self, console: Console, cells: int, before: int) -> None:
        self._console, self._cells, self._ended = console, cells, before
        self._status: Any = None
        if before:
            console.print(f"{before} of {cells} cells are complete already")

    def moved(self, counts: Mapping[str, int]) -> None:
        """Requests done in each running cell."""
        if self._console.is_terminal and counts:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            now = ", ".join(f"{cell.rpartition('-')[0]} {count:,}" for cell, count in counts.items())
            self._status.update(escape(f"{self._ended}/{self._cells} cells; requests: {now}"))

    def ended(self, job: Job, result: CellResult | None, why: str | None) -> None:
        """A cell has a result, or a reason for having none."""
        from harness.wording import percent

        self.stop()
        self._ended += 1
        said = f"FAILED, {why}" if result is None else f"hit rate {percent(result.totals.hit_rate)}"
        if result is not None and result.totals.refused:
            said += f", {result.totals.refused:,} requests refused"
        self._console.print(escape(f"{self._ended}/{self._cells} {job.label}: {said}"), soft_wrap=True)

    def stop(self) -> None:
        """Remove the moving line."""
        if self._status is not None:
            self._status.stop()
            self._status = None
