"""The figure beside `harness.savings`: hit share, saved TTFT and saved request on one axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from harness.drawing import engine_colour, style
from harness.records import RequestRecord
from harness.savings import Savings, savings
from harness.wording import plain

MAX_ROWS = 20
_MARKS = (("hit share of the prompt", "o"), ("TTFT saved", "D"), ("whole request saved", "s"))


def savings_dumbbells(requests: Iterable[RequestRecord], *, warmed_up: bool = False) -> Figure | None:
    """One line per engine and prompt length: how far the saved time stays behind the hit.

    `warmed_up`: as in `harness.savings`. None where no engine was timed cold and warm on prompts of one length.
    """
    rows = sorted(savings(requests, warmed_up=warmed_up), key=lambda row: -row.prompt_len)[:MAX_ROWS]
    if not rows:
        return None
    rows.sort(key=lambda row: (row.prompt_len, row.workload, row.engine_label))
    least = min(0.0, *(min(row.ttft_saved, row.request_saved) for row in rows))
    with style():
        figure = Figure(figsize=(9, 1.5 + 0.42 * len(rows)), layout="constrained")
        axis = figure.subplots()
        for y, row in enumerate(rows):
            _line(axis, y, row)
        axis.axvline(0, color="#888888", linewidth=0.8)
        axis.set(yticks=range(len(rows)), yticklabels=_names(rows))
        axis.set(xlim=(max(least, -1.0) - 0.03, 1.03), ylim=(len(rows) - 0.4, -0.6))
        axis.xaxis.set_major_formatter(PercentFormatter(1.0))
        axis.grid(axis="x", color="#E4E4E4", linewidth=0.6)
        axis.set_axisbelow(True)
        handles = [
            Line2D(
                [], [], linestyle="", marker=mark, color="#444444", markerfacecolor=_fill(mark, "#444444"), label=name
            )
            for name, mark in _MARKS
        ]
        legend = figure.legend(
            handles=handles,
            loc="outside upper left",
            ncols=3,
            frameon=False,
            alignment="left",
            title="A hit is not a saving: tokens taken from the cache, and what they save",
        )
        legend.get_title().set(fontweight="bold", fontsize=10)
    return figure


def _line(axis: Axes, y: int, row: Savings) -> None:
    colour = engine_colour(row.engine)
    values = [row.hit_share, row.ttft_saved, row.request_saved]
    shown = [max(value, -1.0) for value in values]
    axis.plot([min(shown), max(shown)], [y, y], color=colour, linewidth=1.2, alpha=0.5)
    for value, (_, mark) in zip(shown, _MARKS, strict=True):
        axis.plot(value, y, mark, color=colour, markerfacecolor=_fill(mark, colour), markersize=7)


def _fill(mark: str, colour: str) -> str:
    return "white" if mark == "s" else colour


def _names(rows: Sequence[Savings]) -> list[str]:
    """Hit and length of each row; those that share both add the common prefix P."""
    names = [plain(f"{row.engine_label}: {row.hit_len} of {row.prompt_len}") for row in rows]
    seen = Counter(names)
    return [f"{name}, P {row.lcp_len}" if seen[name] > 1 else name for name, row in zip(names, rows, strict=True)]
