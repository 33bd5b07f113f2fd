"""Hit length over prompt length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from harness.drawing import MARKERS, engine_colour, spread, style
from harness.figures.common import subject
from harness.records import RequestRecord, Role
from harness.wording import plain
from vocabulary.engine import Fidelity

ONE_PANEL = 4
"""Lines that one panel can hold; more get a panel per engine."""


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
        title = f"{subject(shown)}: {what}; dotted: what the law says"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
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
