"""One request's life in the reference engine: what matched, what was given back, what was restored and computed."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from harness.drawing import CAUSE_STYLES, style
from harness.figures.common import patch_of
from harness.handover_observe import GroupTables, Live
from harness.wording import plain
from vocabulary.groups import parse_groups

MATCHED, WRITTEN, STEP = "#56B4E9", "#E69F00", "#BBBBBB"
HEIGHT = 0.6


def request_life(live: Live) -> Figure:
    """A row per stage along the prompt's positions: the ledger, each layer group's match and memory, the steps."""
    groups = live.seen.tables.groups
    with style():
        figure = Figure(figsize=(9.5, 1.9 + 0.5 * (2 + len(groups))), layout="constrained")
        axis = figure.subplots()
        rows = ["ledger", *(plain(group.group) for group in groups), "prefill steps"]
        _ledger(axis, live)
        for y, group in enumerate(groups, start=1):
            _group(axis, y, group, live)
        for start, end in live.steps:
            _bar(axis, len(rows) - 1, start, end, STEP, edge="#333333")
            axis.annotate(f"{end - start}", ((start + end) / 2, len(rows) - 1), ha="center", va="center", fontsize=7.5)
        axis.axvline(live.seen.position_start, color="#000000", lw=1, ls="--")
        axis.annotate(
            f"first computed position {live.seen.position_start}",
            (live.seen.position_start, -0.42),
            (3, 2),
            textcoords="offset points",
            fontsize=7.5,
        )
        axis.set(yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.5, -0.75), xlim=(0, live.prompt_len))
        axis.set_xlabel("position in the prompt (tokens)")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        causes = dict.fromkeys(interval.cause for interval in live.expectation.ledger.intervals)
        handles = [patch_of(cause) for cause in causes]
        handles += [
            Patch(facecolor=MATCHED, label="read from the pool"),
            Patch(facecolor=WRITTEN, label="written"),
            Patch(facecolor="none", edgecolor="#333333", ls=":", label="this group alone would reach"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5), fontsize=7.5)
        title = f"One request under {plain(live.law)}: {live.prompt_len} tokens, hit {live.seen.hit_len}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def _ledger(axis: Axes, live: Live) -> None:
    for interval in live.expectation.ledger.intervals:
        colour, hatch = CAUSE_STYLES[interval.cause]
        _bar(axis, 0, interval.start, interval.end, colour, hatch=hatch)


def _group(axis: Axes, y: int, group: GroupTables, live: Live) -> None:
    """Keys read and written, or states restored and stored; dotted: how far the group alone would have gone."""
    start = live.seen.position_start
    read = sum(end - first for first, end in group.read)
    if read:
        _bar(axis, y, start - read, start, MATCHED)
    if group.written:
        _bar(axis, y, start, live.prompt_len, WRITTEN)
    if group.restored is not None:
        axis.plot(group.restored[0], y, marker="D", color=MATCHED, mec="#333333", ms=7)
    for position, _ in group.stored:
        axis.plot(position, y, marker="D", color=WRITTEN, mec="#333333", ms=6, clip_on=False)
    alone = _reach(group.group, live)
    if alone > live.seen.hit_len:
        axis.barh(y, alone, height=HEIGHT + 0.16, facecolor="none", edgecolor="#333333", ls=":", lw=1)


def _reach(text: str, live: Live) -> int:
    """Of the law's group of that kind and window; blocks may be spelled out in one of the two only."""
    (own,) = parse_groups([text])
    reaches = live.expectation.per_group
    same = [reach for name, reach in reaches.items() for each in parse_groups([name]) if each.kind is own.kind]
    return max(same, default=live.seen.hit_len)


def _bar(axis: Axes, y: int, start: int, end: int, colour: str, *, hatch: str = "", edge: str = "#555555") -> None:
    axis.barh(y, end - start, left=start, height=HEIGHT, color=colour, hatch=hatch, edgecolor=edge, linewidth=0.4)
