"""The two figures of a report: records in, `matplotlib.figure.Figure` out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from harness.drawing import CAUSE_STYLES, MARKERS, engine_colour, spread, style
from harness.records import RequestRecord, Role
from harness.views import SendView, folded, workload_views
from harness.wording import ledger_items, plain
from vocabulary.engine import Fidelity
from vocabulary.ledger import Cause

ONE_PANEL = 4
"""Lines that one panel can hold; more get a panel per engine."""
MAX_BARS = 56


@dataclass(frozen=True, slots=True)
class _Line:
    label: str
    engine: str
    predicted: bool
    hits: tuple[tuple[int, int], ...]
    """`(prompt_len, hit_len)` where the engine reported a hit."""
    expected: tuple[tuple[int, int], ...]
    """The same by the law."""


def staircase(requests: Iterable[RequestRecord]) -> Figure:
    """Hit length over prompt length: a line per engine configuration, its law dotted.

    Shows the first repeat of every prompt, or every request where no prompt was repeated (growing chats).
    """
    probes = [r for r in requests if r.role is Role.PROBE]
    shown = [r for r in probes if r.repetition == 1] or probes
    lines = _lines(shown)
    engines = list(dict.fromkeys(line.engine for line in lines))
    panels = [engines] if len(lines) <= ONE_PANEL else [[engine] for engine in engines]
    columns = 1 if len(panels) == 1 else 2
    rows = math.ceil(len(panels) / columns)
    longest = max((r.prompt_len for r in shown), default=1)
    with style():
        figure = Figure(figsize=(7.5 if columns == 1 else 10.5, 0.6 + 3.7 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for place, axis in enumerate(axes.flat):
            if place >= len(panels):
                axis.set_visible(False)
                continue
            own = [line for line in lines if line.engine in panels[place]]
            _staircase_panel(axis, own, [line for line in lines if line not in own], longest)
            if len(panels) > 1:
                axis.set_title(panels[place][0], color=engine_colour(panels[place][0]))
        figure.supxlabel("prompt length L (tokens)", fontsize=9)
        figure.supylabel("hit length (tokens)", fontsize=9)
        what = "first repeat of each prompt" if any(r.repetition for r in shown) else "every send"
        title = f"{_subject(shown)}: {what}; dotted: what the law says"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


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
        subject = _subject([r for view in views for r in view.requests])
        legend = figure.legend(
            handles=[_patch(cause) for cause in Cause if cause in present],
            title=f"{subject}: every token reused or computed, and why{part}",
            loc="outside upper left",
            ncols=7,
            frameon=False,
            alignment="left",
        )
        legend.get_title().set(fontweight="bold", fontsize=10)
    return figure


def _lines(requests: Sequence[RequestRecord]) -> list[_Line]:
    by_label: dict[str, list[RequestRecord]] = {}
    for request in requests:
        by_label.setdefault(request.engine_label, []).append(request)
    lines = []
    for label, of_label in by_label.items():
        ordered = sorted(of_label, key=lambda r: r.prompt_len)
        lines.append(
            _Line(
                plain(label),
                of_label[0].engine,
                of_label[0].fidelity is Fidelity.LAW,
                tuple((r.prompt_len, r.hit_len) for r in ordered if r.hit_len is not None),
                tuple((r.prompt_len, r.expected_hit_len) for r in ordered if r.expected_hit_len is not None),
            )
        )
    return lines


def _staircase_panel(axis: Axes, own: Sequence[_Line], others: Sequence[_Line], longest: int) -> None:
    """Own lines in colour, shifted a little where they would hide each other; others as a faint background."""
    axis.plot([0, longest], [0, longest], color="#BBBBBB", lw=0.8, zorder=1)
    axis.annotate(
        "everything reused",
        (longest * 0.5, longest * 0.5),
        (-3, 3),
        textcoords="offset points",
        color="#888888",
        fontsize=7.5,
        ha="right",
    )
    for line in others:
        axis.plot(*_xy(line.hits), color="#DDDDDD", lw=1, zorder=1)
    figure = axis.get_figure()
    assert figure is not None
    for place, line in enumerate(own):
        shift = (place - (len(own) - 1) / 2) * 1.3 / 72
        moved = axis.transData + ScaledTranslation(-shift, shift, figure.dpi_scale_trans)
        colour = engine_colour(line.engine)
        axis.plot(*_xy(line.expected), color=colour, lw=3, ls=(0, (0.5, 1)), alpha=0.45, zorder=2, transform=moved)
        if not line.predicted:
            axis.plot(
                *_xy(line.hits),
                color=colour,
                lw=1.1,
                marker=MARKERS[place % len(MARKERS)],
                ms=5 - min(place, 4) * 0.4,
                mfc="white" if place % 2 else colour,
                mew=0.9,
                zorder=3,
                transform=moved,
            )
    axis.set(xlim=(0, longest * 1.02), ylim=(-0.03 * longest, longest * 1.05))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    _label_ends(axis, own, longest)


def _label_ends(axis: Axes, lines: Sequence[_Line], longest: int) -> None:
    """Each line's name beside its last point, kept apart from the others."""
    ends = [(line.hits or line.expected or ((longest, 0),))[-1][1] for line in lines]
    heights = spread(ends, 0.07 * longest, low=0, high=longest)
    for line, end, height in zip(lines, ends, heights, strict=True):
        note = "" if line.hits else " (no hits reported)"
        axis.annotate(
            f"{line.label}{note}",
            (longest * 1.015, end),
            (longest * 1.1, height),
            color=engine_colour(line.engine),
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": "#AAAAAA",
                "lw": 0.6,
                "shrinkA": 0,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


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
        patch = _patch(entry.cause)
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


def _patch(cause: Cause) -> Patch:
    colour, hatch = CAUSE_STYLES[cause]
    return Patch(facecolor=colour, hatch=hatch, edgecolor="#555555", linewidth=0, label=cause.value)


def _xy(points: Sequence[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """Coordinates; the line breaks where lengths were left out, since nothing is known in between."""
    xs: list[float] = []
    ys: list[float] = []
    for x, y in points:
        if xs and x > xs[-1] + 1:
            xs.append(math.nan)
            ys.append(math.nan)
        xs.append(x)
        ys.append(y)
    return xs, ys


def _subject(requests: Sequence[RequestRecord]) -> str:
    """Workload and model, or how many there are."""
    return ", ".join(dict.fromkeys(plain(f"{r.workload} on {r.model}") for r in requests)) or "no requests"
