"""Where a cached prompt can be resumed: states, checkpoints, windows and blocks along its positions, by law."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.drawing import engine_colour, style
from harness.wording import plain
from reference_engine.laws.base import Law
from vocabulary.engine import TokenRequest

OUTSIDE = 1 << 30
"""A token ID that no prompt holds."""


@dataclass(frozen=True, slots=True)
class ResumePoints:
    """What a law would give a prompt that leaves a cached one at each position."""

    name: str
    system: str
    prompt_len: int
    hits: tuple[tuple[int, int], ...]
    """`(shared, hit)` in tokens, for the probed lengths of shared prefix."""

    @property
    def points(self) -> tuple[int, ...]:
        """Positions at which some sibling would resume."""
        return tuple(sorted({hit for _, hit in self.hits if hit}))


def resume_points(name: str, law: Law, ids: Sequence[int], *, step: int = 1, tail: int = 64) -> ResumePoints:
    """Ask copies of a law, in its present state, for siblings that share 1, 1 + step, ... tokens with `ids`.

    The law itself stays as it is. A sibling goes on with `tail` tokens that occur nowhere else.
    """
    hits = []
    own = tuple(range(OUTSIDE, OUTSIDE + tail))
    for shared in range(1, len(ids) + 1, step):
        request = TokenRequest(request_id="sibling", ids=(*ids[:shared], *own))
        hits.append((shared, copy.deepcopy(law).send(request).hit_len))
    return ResumePoints(name, law.id.partition("@")[0], len(ids), tuple(hits))


def resume_figure(laws: Sequence[ResumePoints]) -> Figure:
    """A line per law: the prompt as a bar, a tick at every position from which some sibling would resume.

    The filled part is the share of the common prefix that a sibling keeps, by where it leaves the prompt.
    """
    longest = max(each.prompt_len for each in laws)
    with style():
        figure = Figure(figsize=(9.5, 1.2 + 0.9 * len(laws)), layout="constrained")
        axis = figure.subplots()
        for y, each in enumerate(laws):
            colour = engine_colour(each.system)
            axis.barh(y, each.prompt_len, height=0.16, color="#E6E6E6", edgecolor="#AAAAAA", linewidth=0.5)
            axis.vlines(each.points, y - 0.16, y + 0.16, color=colour, lw=1.4)
            shared = [s for s, _ in each.hits]
            kept = [y + 0.12 + 0.34 * hit / s for s, hit in each.hits]
            axis.fill_between(shared, y + 0.12, kept, color=colour, alpha=0.35, linewidth=0, step="post")
            count = len(each.points)
            note = f"{count} resume point{'' if count == 1 else 's'}"
            axis.annotate(note, (longest, y), (6, 0), textcoords="offset points", va="center", fontsize=7.5)
        axis.set(yticks=range(len(laws)), yticklabels=[plain(each.name) for each in laws], ylim=(len(laws) - 0.4, -0.5))
        axis.set(xlim=(0, longest * 1.002), xlabel="position where a sibling leaves the cached prompt (tokens)")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.spines["left"].set_visible(False)
        title = "Where a cached prompt can be resumed; filled: share of the common prefix that is kept"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure
