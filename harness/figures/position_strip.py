"""Where each send began to compute: cold, first repeat, second repeat."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.drawing import engine_colour, style
from harness.figures.common import subject
from harness.records import RequestRecord, Role
from harness.wording import plain
from vocabulary.engine import Fidelity

MAX_STRIPS = 40
SENDS = (("cold (first send)", "o", "white"), ("first repeat", "s", None), ("second repeat", "D", None))
"""Name, marker and fill by repetition; None: the engine's colour."""


def position_strip(requests: Iterable[RequestRecord]) -> Figure | None:
    """One strip per prompt and engine configuration, one mark per send at the first computed position.

    Prompts sent more than once, those with the most different starts; None where nothing was repeated. Predictions are
    left out where any engine ran.
    """
    requests = [r for r in requests if r.role is Role.PROBE and r.repetition < len(SENDS)]
    requests = [r for r in requests if r.fidelity is not Fidelity.LAW] or requests
    prompts: dict[tuple[str, int], dict[str, list[RequestRecord]]] = {}
    for request in requests:
        if request.position_start is not None or request.hit_len is not None:
            strips = prompts.setdefault((request.label, request.prompt_len), {})
            strips.setdefault(request.engine_label, []).append(request)
    repeated = [p for p in prompts.values() if any(r.repetition for rows in p.values() for r in rows)]
    if not repeated:
        return None
    repeated.sort(key=_telling, reverse=True)
    chosen: list[list[RequestRecord]] = []
    for strips in repeated:
        if len(chosen) + len(strips) <= MAX_STRIPS or not chosen:
            chosen += strips.values()
    total = sum(map(len, repeated))
    chosen.sort(key=lambda rows: (rows[0].prompt_len, rows[0].label))
    longest = max(rows[0].prompt_len for rows in chosen)
    with style():
        figure = Figure(figsize=(9, 1.6 + 0.26 * len(chosen)), layout="constrained")
        axis = figure.subplots()
        for y, rows in enumerate(chosen):
            _strip(axis, y, rows)
        names = [plain(f"{rows[0].label}, {rows[0].engine_label}") for rows in chosen]
        axis.set(yticks=range(len(chosen)), yticklabels=names, ylim=(len(chosen) - 0.4, -0.6))
        axis.set(
            xlim=(-0.01 * longest, 1.02 * longest), xlabel="first computed position (tokens); the bar is the prompt"
        )
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.spines["left"].set_visible(False)
        handles = [
            Line2D([], [], ls="", marker=marker, color="#444444", markerfacecolor=fill or "#444444", label=name)
            for name, marker, fill in SENDS
        ]
        part = f" ({len(chosen)} of {total} strips)" if len(chosen) < total else ""
        legend = figure.legend(
            handles=handles,
            title=f"{subject(requests)}: where computing starts{part}",
            loc="outside upper left",
            ncols=3,
            frameon=False,
            alignment="left",
        )
        legend.get_title().set(fontweight="bold", fontsize=10)
    return figure


def _telling(strips: dict[str, list[RequestRecord]]) -> tuple[int, int]:
    """How many different starts a prompt has, then its length."""
    starts = {(r.repetition, _start(r)) for rows in strips.values() for r in rows}
    return len(starts), next(iter(strips.values()))[0].prompt_len


def _strip(axis: Axes, y: int, rows: list[RequestRecord]) -> None:
    colour = engine_colour(rows[0].engine)
    axis.barh(y, rows[0].prompt_len, height=0.5, color="#EFEFEF", edgecolor="#CCCCCC", linewidth=0.5)
    for request in rows:
        _, marker, fill = SENDS[request.repetition]
        size = 8 - 2 * request.repetition  # sends that start at the same position stay visible inside each other
        start = _start(request)
        axis.plot(start, y, marker, color=colour, markerfacecolor=fill or colour, markersize=size, mew=1.0)


def _start(request: RequestRecord) -> int:
    """The observed start; where the engine shows none, its hit."""
    start = request.hit_len if request.position_start is None else request.position_start
    assert start is not None
    return start
