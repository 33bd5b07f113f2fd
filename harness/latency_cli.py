"""`hitparity latency`: run pairs and say what a hit saves, with intervals, or read that from a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.durable import writable
from harness.latency import Latency, both, interval, latencies, pairs_of
from harness.latency_page import latency_page
from harness.plan import Group
from harness.store import RUN_FILE, Run, load_run
from harness.summary import unfinished_cells
from harness.terminal import terminal
from harness.wording import plain
from vocabulary.errors import ExitCode, UsageError
from workloads.families.pairs import Pairs

LATENCY_FILE = "latency.json"
WIDTH = 116
"""Characters that both tables need."""


def latency(
    what: Annotated[
        str,
        typer.Argument(metavar="EXPERIMENT|RUN", help="An experiment with `pairs` workloads, or its run."),
    ] = "latency",
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Folder that runs are written below.")
    ] = Path("results"),
    only: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="Run only cells with this engine, label, model or workload.")
    ] = [],  # noqa: B006  (typer copies it)
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest run; complete cells stay.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="F.md", help="The same as a page, with its figures in the folder F.")
    ] = None,
) -> None:
    """Time prompts cold and warm in balanced pairs: TTFT, first-to-last, TPOT and total, with verified hits."""
    folder, code = Path(what), ExitCode.CLEAN
    if not (folder / RUN_FILE).is_file():
        folder, code = _run(what, results, only, resume=resume)
    done = load_run(folder)
    rows, gaps = latencies(done.requests)
    gaps += unfinished_cells(done.cells, done.requests, done.manifest.cells)
    if not rows and not gaps:
        raise UsageError(f"{what}: no workload of the family `pairs` was timed; see `hitparity run latency --dry-run`")
    floors = _floors(folder, {row.prompt_len for row in rows})
    _write_rows(folder, floors, rows)
    tables = _tables(rows, floors)
    console = terminal()
    console.width = max(console.width, WIDTH)
    for table in tables:
        console.print(table)
    console.print(
        "medians; x: median cold / median warm; interval: 95 % of the median of the pairs' cold / warm", soft_wrap=True
    )
    console.print(
        "floor: our client against a server that computes nothing; p99 is shown from 100 pairs on", soft_wrap=True
    )
    rejected = [f"{row.engine_label}, {row.prompt_len} tokens: left out: {why}" for row in rows for why in row.rejected]
    for sentence in [*gaps, *rejected]:
        console.print(f"! {escape(plain(sentence))}", soft_wrap=True)
    for path in _figures(done, floors, folder / "report"):
        console.print(f"figure: {escape(str(path))}", soft_wrap=True)
    if markdown is not None:
        names = [path.stem for path in _figures(done, floors, markdown.with_suffix(""))]
        text = latency_page(done, rows, [*gaps, *rejected], floors, [f"{markdown.stem}/{name}.svg" for name in names])
        with writable(markdown):
            markdown.write_text(text, encoding="utf-8", newline="\n")
        console.print(f"page:   {escape(str(markdown))}", soft_wrap=True)
    raise typer.Exit(max(code, ExitCode.INCONCLUSIVE if gaps or not rows else ExitCode.CLEAN))


def _run(experiment: str, results: Path, only: Sequence[str], *, resume: bool) -> tuple[Path, ExitCode]:
    """Measure the client floor, run the experiment, return its folder."""
    from harness.catalogue import find_experiment
    from harness.experiment import load_experiment
    from harness.plan import plan
    from harness.progress import ConsoleProgress
    from harness.runner import Runner, open_run

    path = find_experiment(experiment)
    loaded = load_experiment(path)
    groups = plan(loaded, only)
    folder = open_run(loaded, path, groups, results, resume=resume)
    _floors(folder, _lengths(groups))
    progress = ConsoleProgress()
    try:
        return folder, Runner(loaded, path, folder, progress).run(groups)
    finally:
        progress.stop()


def _lengths(groups: Sequence[Group]) -> set[int]:
    """Prompt lengths of all planned pairs."""
    asked = [cell.workload.parameters for group in groups for cell in group.cells]
    return {shared + each.suffix for each in asked if isinstance(each, Pairs) for shared in each.shared}


def _floors(folder: Path, lengths: set[int]) -> dict[int, float]:
    """Median client floor in ms by prompt length, measured once per run and kept beside its records."""
    from harness.client_floor import client_floor

    path = folder / LATENCY_FILE
    known: dict[int, float] = {}
    if path.is_file():
        known = {
            int(length): float(ms) for length, ms in json.loads(path.read_text(encoding="utf-8"))["floor_ms"].items()
        }
    if missing := sorted(lengths - set(known)):
        known |= {length: statistics.median(times) for length, times in client_floor(missing, sends=100).items()}
        _write_rows(folder, known, [])
    return known


def _write_rows(folder: Path, floors: dict[int, float], rows: Sequence[Latency]) -> None:
    document = {"floor_ms": floors, "rows": [asdict(row) for row in rows]}
    path = folder / LATENCY_FILE
    with writable(path):
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _tables(rows: Sequence[Latency], floors: dict[int, float]) -> list[Table]:
    """The time to first token, and what comes after it."""
    width = min(28, max((len(row.engine_label) for row in rows), default=8))
    first = _empty(width, "Time to first token, cold > warm", "hit", "pairs", "starts", "warm faster", "TTFT ms", "x")
    for name in ("interval", "floor ms"):
        first.add_column(name, justify="right", no_wrap=True)
    rest = _empty(width, "After the first token, cold > warm", "first-to-last ms", "TPOT ms", "total ms", "x")
    for row in sorted(rows, key=lambda row: (row.model, row.engine_label, row.prompt_len)):
        names = (Text(plain(row.engine_label)), str(row.prompt_len))
        first.add_row(
            *names,
            str(row.hit_len),
            str(row.pairs),
            str(row.starts),
            str(row.warm_faster),
            both(row.ttft),
            f"{row.ttft.speedup:.2f}",
            Text(interval(row)),
            f"{floors[row.prompt_len]:.2f}",
        )
        rest.add_row(*names, both(row.first_to_last), both(row.tpot), both(row.total), f"{row.total.speedup:.2f}")
    return [first, rest]


def _empty(width: int, title: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("engine", overflow="fold", width=width)  # rich narrows a flexible column down to nothing
    for name in ("L", *numbers):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _figures(run: Run, floors: dict[int, float], folder: Path) -> list[Path]:
    from harness.drawing import save_figure
    from harness.figures import savings_dumbbells, ttft_over_prefix, ttft_slopes

    counted = [r for pair in pairs_of(run.requests) if pair.rejected is None for r in (pair.cold, pair.warm)]
    floor = floors[max(floors)] if floors else None
    drawn = {
        "latency-slopes": ttft_slopes(counted, floor_ms=floor),
        "latency-over-prefix": ttft_over_prefix(counted, warmed_up=True),
        "latency-savings": savings_dumbbells(counted, warmed_up=True),
    }
    return [save_figure(figure, folder, name)[1] for name, figure in drawn.items() if figure is not None]
