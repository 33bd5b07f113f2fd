"""The HTML report: one file that needs no network and no server, with every request's ledger one click away.

Everything of a record is escaped by the template or handed over as JSON and set as text. The page forbids itself
to load anything (Content-Security-Policy). The same run gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.drawing import engine_colour
from harness.listing import enum_meanings
from harness.outcome import INCONCLUSIVE
from harness.overview import CellLine, Overview, TotalLine, overview
from harness.records import CellStatus, FindingKind, Role
from harness.savings import NOT_LOST
from harness.store import Run
from harness.svg import hatches, ledger_bar, staircase_panels
from harness.views import WorkloadView, differing, most_telling, workload_views
from harness.wording import count, is_marked, law_text, milliseconds, number, percent, plain, send_name
from vocabulary.errors import ExitCode
from vocabulary.ledger import Cause

LEDGERS = 20_000
"""Requests on the page, about 100 bytes each; a browser filters and sorts them at once."""
FINDINGS = 1_000
"""Findings listed."""
CONTRADICTED = frozenset(FindingKind) - INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Head:
    """Name of a row or column of the matrix."""

    name: str
    small: str
    colour: str


@dataclass(frozen=True, slots=True)
class Square:
    """One engine configuration on one workload, in the matrix."""

    cell: CellLine
    share: float | None
    """Reused, of the prompt tokens whose fate is known."""
    not_explained: int | None
    """Tokens `unexplained` or without a law; None where nothing is known."""

    @property
    def paper(self) -> str:
        """Background from white to blue with the share reused."""
        if self.share is None:
            return "#f3f3f3"
        return "#" + "".join(f"{round(255 + (end - 255) * 0.75 * self.share):02x}" for end in (62, 123, 184))


def page(run: Run) -> str:
    """The document."""
    seen = overview(run)
    views = workload_views(run.requests)
    heads, rows = _matrix(seen)
    loader = PackageLoader("harness")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    models = list(dict.fromkeys(total.model for total in seen.totals))
    totals = [
        (model, [(t, ledger_bar(t.tokens_by_cause), _lost(t)) for t in seen.totals if t.model == model])
        for model in models
    ]
    source = {name: loader.get_source(environment, name)[0] for name in ("report.css", "report.js")}
    return environment.get_template("report.html.j2").render(
        seen=seen,
        state=_state(seen),
        heads=heads,
        rows=rows,
        never_ran=[cell for cell in seen.cells if not cell.label],
        totals=totals,
        several_models=len(models) > 1,
        causes=[(c, meaning) for c, meaning in _meanings() if any(c in t.tokens_by_cause for t in seen.totals)],
        stairs=[(view, panels) for view in views if (panels := staircase_panels(view))],
        hatches=hatches(),
        most_findings=FINDINGS,
        asked=len(run.requests),
        listed=min(len(run.requests), LEDGERS),
        data=Markup(_data(run, seen, views)),
        css=Markup(source["report.css"]),
        js=Markup(source["report.js"]),
        count=count,
        milliseconds=milliseconds,
        number=number,
        percent=percent,
    )


def _meanings() -> list[tuple[Cause, str]]:
    return [(Cause(name), meaning) for name, meaning in enum_meanings(Cause).items()]


def _state(seen: Overview) -> tuple[str, str]:
    """Style and first word of the verdict."""
    incomplete = any(cell.status is not CellStatus.COMPLETE for cell in seen.cells)
    if any(finding.kind in CONTRADICTED for finding in seen.findings):
        return "bad", "Findings, and incomplete" if incomplete else "Findings"
    if seen.exit_code is ExitCode.CLEAN:
        return "clean", "No findings"
    return "open", "Incomplete" if incomplete else "Inconclusive"


def _matrix(seen: Overview) -> tuple[list[Head], list[tuple[Head, list[Square | None]]]]:
    """Heads of the columns, and rows; engines or workloads across, whichever are fewer."""
    engine_of = {cell.label: cell.engine for cell in seen.cells if cell.label}
    engines = {label: Head(label, "", engine_colour(engine)) for label, engine in engine_of.items()}
    keys = dict.fromkeys((cell.workload, cell.model) for cell in seen.cells if cell.label)
    workloads = {key: Head(*key, "var(--line)") for key in keys}
    squares = {(cell.label, (cell.workload, cell.model)): _square(cell) for cell in seen.cells if cell.label}
    if len(engines) < len(workloads):
        grid = [(head, [squares.get((label, key)) for label in engines]) for key, head in workloads.items()]
        return list(engines.values()), grid
    grid = [(head, [squares.get((label, key)) for key in workloads]) for label, head in engines.items()]
    return list(workloads.values()), grid


def _lost(total: TotalLine) -> str:
    """What an engine could have reused and did not, by cause."""
    parts = [f"{cause.value} {tokens}" for cause, tokens in total.tokens_by_cause.items() if cause not in NOT_LOST]
    return ", ".join(parts) if parts else "nothing lost" if total.tokens_by_cause else "nothing is known"


def _square(cell: CellLine) -> Square:
    known = cell.known_tokens
    left = sum(cell.tokens_by_cause.get(cause, 0) for cause in (Cause.UNEXPLAINED, Cause.NO_LAW))
    share = cell.tokens_by_cause.get(Cause.REUSED, 0) / known if known else None
    return Square(cell, share, left if known else None)


def _data(run: Run, seen: Overview, views: Sequence[WorkloadView]) -> str:
    """All requests as JSON that may stand in a script element; repeated texts are numbers into lists."""
    cells = [cell.cell for cell in seen.cells]
    place = {cell: number for number, cell in enumerate(cells)}
    causes = list(Cause)
    differ = differing(views)
    shown = most_telling(run.requests, differ, LEDGERS)
    laws = {request.cell: plain(law_text(request)) for request in run.requests}
    rows = [
        [
            place[plain(request.cell)],
            send_name(request) if request.role is not Role.SENTINEL else f"{send_name(request)}, sentinel",
            list(Role).index(request.role),
            request.prompt_len,
            request.lcp_len,
            request.hit_len,
            request.expected_hit_len,
            request.position_start,
            request.ttft_ns,
            [number for entry in request.ledger for number in (entry.end, causes.index(entry.cause))],
            [f"{finding.kind.value}: {plain(finding.detail)}" for finding in request.findings],
            int(request.request_id in differ) + 2 * int(is_marked(request)),
            request.junction,
        ]
        for request in shown
    ]
    document = {
        "causes": [cause.value for cause in causes],
        "roles": [role.value for role in Role],
        "cells": [
            [cell.cell, cell.label, cell.engine, cell.workload, cell.model, laws.get(cell.cell, "")]
            for cell in seen.cells
        ],
        "requests": rows,
        "leftOut": len(run.requests) - len(rows),
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
