"""Ledgers of one workload as stacked bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.drawing import engine_colour, style
from harness.figures.common import patch_of, subject
from harness.records import RequestRecord
from harness.views import SendView, folded, workload_views
from harness.wording import ledger_items, plain
from vocabulary.engine import Fidelity
from vocabulary.ledger import Cause

MAX_BARS = 56


def ledger_bars(requests: Iterable[RequestRecord]) -> Figure:
    """Ledgers of one workload: one stacked bar per send and engine configuration.

    Repeats answered alike are one send here. Where there are too many sends, those are shown whose
    ledgers differ most between the engines; sends that share nothing with an earlier one come last.
    """
    views = workload_views(requests)
    rows = [row for view in views for row in folded(view)[0]] or [(s.name, s) for view in views for s in view.sends]
    chosen = _most_telling(rows)
    bars = sum(len(send.requests) for _, send in chosen)
    longest = max((r.prompt_len for _, send in chosen for r in send.requests), default=1)
    with style():
        figure = Figure(figsize=(10.5, 1.3 + 0.19 * bars + 0.27 * len(chosen)), layout="constrained")
        axis = figure.subplots()
        present: set[Cause] = set()
        y = 0.0
        for name, send in chosen:
            first = send.requests[0]
            heading = f"{name}   L {first.prompt_len}, P {first.lcp_len}"
            axis.text(0, y, heading, va="center", fontweight="bold", fontsize=9)
            y += 1
            for request in send.requests:
                present |= _bar(axis, y, request, longest)
                y += 1
            y += 0.4
        axis.set(xlim=(0, longest * 1.002), ylim=(y - 0.4, -0.8), yticks=[], xlabel="position in the prompt (tokens)")
        axis.spines["left"].set_visible(False)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        part = f" ({len(chosen)} of {len(rows)} sends)" if len(chosen) < len(rows) else ""
        what = subject([r for view in views for r in view.requests])
        legend = figure.legend(
            handles=[patch_of(cause) for cause in Cause if cause in present],
            title=f"{what}: every token reused or computed, and why{part}",
            loc="outside upper left",
            ncols=7,
            frameon=False,
            alignment="left",
        )
        legend.get_title().set(fontweight="bold", fontsize=10)
    return figure


def _most_telling(rows: Sequence[tuple[str, SendView]]) -> list[tuple[str, SendView]]:
    """As many as there is room for, in order; those with the most different ledgers go first."""

    def telling(index: int) -> tuple[int, int]:
        _, send = rows[index]
        shares = any(r.lcp_len or r.findings for r in send.requests)
        return (-len({r.ledger for r in send.requests}) if shares else 1, index)

    room = MAX_BARS
    kept: list[int] = []
    for index in sorted(range(len(rows)), key=telling):
        room -= len(rows[index][1].requests)
        if kept and room < 0:
            break
        kept.append(index)
    return [rows[index] for index in sorted(kept)]


def _bar(axis: Axes, y: float, request: RequestRecord, longest: int) -> set[Cause]:
    """One request's ledger, its name on the left and its numbers on the right; returns the causes drawn."""
    for entry in request.ledger:
        patch = patch_of(entry.cause)
        axis.barh(
            y,
            entry.end - entry.start,
            left=entry.start,
            height=0.82,
            facecolor=patch.get_facecolor(),
            hatch=patch.get_hatch(),
            edgecolor=patch.get_edgecolor(),
            linewidth=0,
        )
    axis.barh(y, request.prompt_len, height=0.82, fill=False, edgecolor="#888888", linewidth=0.5)
    mark = "~" if request.fidelity is Fidelity.LAW else ""
    axis.annotate(
        mark + plain(request.engine_label),
        (0, y),
        (-6, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=8,
        color=engine_colour(request.engine),
        annotation_clip=False,
    )
    flag = "  !" if request.findings else ""
    axis.annotate(
        " | ".join(ledger_items(request)) + flag,
        (longest, y),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        color="#333333",
        annotation_clip=False,
    )
    return {entry.cause for entry in request.ledger}
