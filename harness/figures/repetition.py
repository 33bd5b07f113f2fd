"""Hit length by repetition: an engine that needs two or three sends of a prompt before it hits."""

from __future__ import annotations

import math
from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.drawing import MARKERS, engine_colour, spread, style
from harness.figures.common import subject
from harness.records import RequestRecord, Role
from harness.wording import plain

MAX_LINES = 7
"""Prompts per panel; those whose hits change most between sends are shown."""
COLUMNS = 3


def hit_by_repetition(requests: Iterable[RequestRecord]) -> Figure | None:
    """A panel per engine configuration, a line per prompt: hit over the number of the send.

    None where no prompt was sent three times.
    """
    requests = [r for r in requests if r.role is Role.PROBE and r.hit_len is not None]
    panels: dict[str, dict[tuple[str, int], list[RequestRecord]]] = {}
    for request in requests:
        lines = panels.setdefault(request.engine_label, {})
        lines.setdefault((request.label, request.prompt_len), []).append(request)
    panels = {label: {k: v for k, v in lines.items() if len(v) > 2} for label, lines in panels.items()}
    panels = {label: lines for label, lines in panels.items() if lines}
    if not panels:
        return None
    columns = min(COLUMNS, len(panels))
    with style():
        rows = math.ceil(len(panels) / columns)
        figure = Figure(figsize=(3.6 * columns + 1, 0.8 + 2.9 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        for axis, (label, lines) in zip(axes.flat, panels.items(), strict=False):
            first = next(iter(lines.values()))[0]
            chosen = sorted(lines.values(), key=lambda sends: (-len({r.hit_len for r in sends}), -sends[0].prompt_len))
            chosen = chosen[:MAX_LINES]
            highest = max(r.hit_len or 0 for sends in chosen for r in sends) or 1
            heights = spread([sends[-1].hit_len or 0 for sends in chosen], 0.09 * highest, low=0, high=1.05 * highest)
            for place, (sends, height) in enumerate(zip(chosen, heights, strict=True)):
                numbers = [r.repetition + 1 for r in sends]
                hits = [r.hit_len for r in sends]
                colour = engine_colour(first.engine)
                marker = MARKERS[place % len(MARKERS)]
                axis.plot(numbers, hits, marker=marker, color=colour, lw=1, ms=5, mfc="white" if place % 2 else colour)
                end = (numbers[-1], hits[-1] or 0)
                axis.annotate(
                    f" L {sends[0].prompt_len}",
                    end,
                    (numbers[-1] + 0.12, height),
                    fontsize=7,
                    va="center",
                    annotation_clip=False,
                )
            axis.set_title(plain(label), color=engine_colour(first.engine))
            axis.set(ylim=(-0.05 * highest, 1.12 * highest))
            axis.margins(x=0.15)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.supxlabel("send of the same prompt", fontsize=9)
        figure.supylabel("hit length (tokens)", fontsize=9)
        title = f"{subject(requests)}: hit by repetition"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure
