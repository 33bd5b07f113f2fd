"""The Markdown report of a run, with its figures. The same run gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import TypeAdapter

from harness.drawing import NO_FIGURES, can_draw, save_figure
from harness.durable import writable
from harness.overview import configurations, difference, distinct, machine_lines
from harness.records import RequestRecord, Role
from harness.savings import savings
from harness.store import Run
from harness.summary import engine_summaries, invalid_cells, median_ttft, remarks, unfinished_cells, verdict
from harness.views import WorkloadView, differing, folded, most_telling, telling_rows, workload_views
from harness.wording import (
    count,
    is_marked,
    ledger_items,
    milliseconds,
    number,
    percent,
    plain,
    send_name,
    signed,
    span,
)
from vocabulary.engine import EngineFacts, Fidelity
from vocabulary.errors import UsageError
from vocabulary.ledger import Cause

REPORT = "report.md"
SAVINGS = "savings"
LEDGERS = 5_000
"""Requests listed with their ledgers; half a megabyte of Markdown."""
ROWS = 500
"""Sends in the matrix of one workload."""
FINDINGS = 1_000
"""Findings listed."""
STAIRS = 4
"""Repeated lengths that make a staircase."""
_FACTS = TypeAdapter(EngineFacts)
_SPECIAL = re.compile(r"([\\`*{}\[\]<>|~$&#])|(?<![A-Za-z0-9])(_)|(_)(?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Section:
    """One workload on one model, with the names of its figures."""

    view: WorkloadView
    labels: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Name, length and the hits by configuration."""
    ttft: tuple[tuple[str, tuple[str, ...]], ...]
    """`cold` and `warm`, and the median TTFT in milliseconds by configuration."""
    cold: int
    """Cold sends left out of `rows`."""
    rows_left_out: int
    """Others left out of `rows`, because they are too many."""
    requests: tuple[RequestRecord, ...]
    """Those listed with their ledgers."""
    difference: str
    staircase: str | None
    ledger: str


def write_report(run: Run, folder: Path | None = None) -> list[Path]:
    """Write `report.md` and its figures into a folder (default: `report` in the run's) and return their paths.

    Raises UsageError when the folder cannot be written.
    """
    folder = folder or run.folder / "report"
    if not can_draw():
        return [_short_report(run, folder / REPORT)]
    from harness.figures import ledger_bars, savings_dumbbells, staircase

    try:
        folder.mkdir(parents=True, exist_ok=True)
        sections, paths = [], []
        names = {SAVINGS}
        views = workload_views(run.requests)
        several = len({view.model for view in views}) > 1
        asked = [r for view in views for r in view.requests]
        listed = frozenset(r.request_id for r in most_telling(asked, differing(views), LEDGERS))
        for view in views:
            section = _section(view, names, listed, several_models=several)
            sections.append(section)
            if section.staircase:
                paths += save_figure(staircase(view.requests), folder, section.staircase)
            paths += save_figure(ledger_bars(view.requests), folder, section.ledger)
        if (dumbbells := savings_dumbbells(run.requests)) is not None:
            paths += save_figure(dumbbells, folder, SAVINGS)
        (folder / REPORT).write_text(_render(run, sections), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{folder}: the report cannot be written: {reason}; choose another folder") from None
    return [folder / REPORT, *paths]


def _short_report(run: Run, path: Path) -> Path:
    from harness.brief import brief_markdown
    from harness.overview import overview

    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{brief_markdown(overview(run))}\nWritten {NO_FIGURES}.\n", encoding="utf-8")
    return path


class Raw(str):
    """Text that is Markdown already."""

    __slots__ = ()


def escape(value: object) -> str:
    """Text that Markdown shows as it is, in a table cell too."""
    if isinstance(value, Raw):
        return value
    return _SPECIAL.sub(r"\\\g<0>", plain(str(value)))


def _render(run: Run, sections: Sequence[Section]) -> str:
    """Every `{{ expression }}` of the template goes through `escape`."""
    environment = Environment(
        loader=PackageLoader("harness"),
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    engines = configurations(run)
    summaries = engine_summaries(run.cells, run.requests)
    return environment.get_template("report.md.j2").render(
        manifest=run.manifest,
        machine=machine_lines(run),
        models=distinct(cell.model for cell in run.cells),
        workloads=distinct(
            cell.workload if cell.workload == cell.family else f"{cell.workload} ({cell.family})" for cell in run.cells
        ),
        verdict=verdict(run.cells, run.requests, run.manifest.cells),
        unfinished=unfinished_cells(run.cells, run.requests, run.manifest.cells),
        configurations=engines,
        several_models=len({summary.model for summary in summaries}) > 1,
        summaries=summaries,
        causes=[cause for cause in Cause if any(cause in summary.by_cause for summary in summaries)],
        sections=sections,
        savings=savings(run.requests),
        savings_figure=SAVINGS,
        lawless=[c.label for c in engines if c.law == "none covers it"],
        predicted=distinct(r.engine_label for r in run.requests if r.fidelity is Fidelity.LAW),
        emulated=distinct(r.engine_label for r in run.requests if r.emulated),
        gaps=[gap for summary in summaries for gap in summary.gaps],
        remarks=remarks(run.cells, run.requests),
        invalid=invalid_cells(run.cells),
        left_out=[remark.replace(f"{run.folder}/", "") for remark in run.remarks],
        checks=run.manifest.configuration.get("checks", {}),
        most_findings=FINDINGS,
        raw=Raw,
        Role=Role,
        count=count,
        is_marked=is_marked,
        ledger=lambda request: " | ".join(ledger_items(request)),
        milliseconds=milliseconds,
        number=number,
        percent=percent,
        send_name=send_name,
        signed=signed,
    )


def _section(view: WorkloadView, names: set[str], listed: frozenset[str], *, several_models: bool) -> Section:
    rows, cold = folded(view)
    shown = []
    for name, send in telling_rows(rows, ROWS):
        answers = {r.engine_label: r for r in send.requests}
        hits = tuple(_hit(answers[label]) if label in answers else "" for label in view.labels)
        shown.append((name, span(r.prompt_len for r in send.requests), hits))
    by_label = [[r for r in view.requests if r.engine_label == label] for label in view.labels]
    ttft = [
        (name, tuple(milliseconds(median_ttft(of_label, warm=name == "warm")) for of_label in by_label))
        for name in ("cold", "warm")
    ]
    suffix = f"{view.workload}-{view.model.rsplit('/', 1)[-1]}" if several_models else view.workload
    stairs = None
    if len({r.prompt_len for r in view.requests if r.repetition}) >= STAIRS:
        stairs = "staircase" if "staircase" not in names else f"staircase-{_slug(suffix)}"
        stairs = _unique(stairs, names)
    return Section(
        view=view,
        labels=tuple(plain(label) for label in view.labels),
        rows=tuple(shown),
        ttft=tuple(ttft),
        cold=cold,
        rows_left_out=len(rows) - len(shown),
        requests=tuple(r for r in view.requests if r.request_id in listed),
        difference=difference(view),
        staircase=stairs,
        ledger=_unique(f"ledger-{_slug(suffix)}", names),
    )


def _hit(request: RequestRecord) -> str:
    return count(request.hit_len) + (" !" if is_marked(request) else "")


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.") or "workload"


def _unique(name: str, taken: set[str]) -> str:
    found, suffix = name, 1
    while found in taken:
        suffix += 1
        found = f"{name}-{suffix}"
    taken.add(found)
    return found
