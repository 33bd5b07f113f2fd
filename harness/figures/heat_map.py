"""The matrix of a run at a glance: engine configurations against workloads."""

from __future__ import annotations

from collections.abc import Iterable

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.drawing import engine_colour, style
from harness.records import RequestRecord, Role
from harness.wording import plain
from vocabulary.ledger import Cause

NOT_EXPLAINED = frozenset({Cause.UNEXPLAINED, Cause.NO_LAW})


def heat_map(requests: Iterable[RequestRecord]) -> Figure | None:
    """Colour: share of the recomputed tokens that a law explains; numbers: tokens reused over prompt tokens.

    A cell without any ledger is hatched: nothing is known about it. None where there are no requests.
    """
    cells: dict[tuple[str, str], list[RequestRecord]] = {}
    engines: dict[str, str] = {}
    probes = [r for r in requests if r.role is Role.PROBE]
    several = len({r.model for r in probes}) > 1
    for request in probes:
        column = f"{request.workload}\n{request.model}" if several else request.workload
        cells.setdefault((request.engine_label, column), []).append(request)
        engines.setdefault(request.engine_label, request.engine)
    if not cells:
        return None
    columns = list(dict.fromkeys(column for _, column in cells))
    with style():
        figure = Figure(figsize=(2.6 + 1.45 * len(columns), 1.9 + 0.5 * len(engines)), layout="constrained")
        axis = figure.subplots()
        colours = mpl.colormaps["cividis"]
        for y, label in enumerate(engines):
            for x, column in enumerate(columns):
                if not (of_cell := cells.get((label, column))):
                    continue
                known = [r for r in of_cell if r.ledger]
                share = _explained(known)
                face = colours(share) if share is not None else "white"
                hatch = "" if known else "xxx"
                corner = (x - 0.48, y - 0.46)
                axis.add_patch(Rectangle(corner, 0.96, 0.92, facecolor=face, hatch=hatch, edgecolor="#999999"))
                reused = sum(r.by_cause().get(Cause.REUSED, 0) for r in known)
                text = f"{reused:,}\nof {sum(r.prompt_len for r in known):,}" if known else "no ledger"
                dark = share is not None and share < 0.6
                axis.text(x, y, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "black")
        axis.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(engines) - 0.5, -0.5))
        axis.set_xticks(range(len(columns)), [plain(c) if "\n" not in c else c for c in columns], fontsize=8)
        axis.set_yticks(range(len(engines)), [plain(label) for label in engines])
        for tick, engine in zip(axis.get_yticklabels(), engines.values(), strict=True):
            tick.set_color(engine_colour(engine))
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        scale = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, 1), colours)
        bar = figure.colorbar(scale, ax=axis, fraction=0.03, pad=0.02)
        bar.set_label("share of recomputed tokens explained", fontsize=8)
        title = "Every engine on every workload: tokens reused, and how much of the rest is explained"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def _explained(requests: list[RequestRecord]) -> float | None:
    """None where nothing has a ledger; 1 where nothing was recomputed."""
    if not requests:
        return None
    recomputed = sum(e.end - e.start for r in requests for e in r.ledger if e.cause is not Cause.REUSED)
    unclear = sum(e.end - e.start for r in requests for e in r.ledger if e.cause in NOT_EXPLAINED)
    return 1 - unclear / recomputed if recomputed else 1.0
