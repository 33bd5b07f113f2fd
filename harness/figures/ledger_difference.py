"""Version against version: how each cause's tokens changed, send by send."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.drawing import style
from harness.figures.common import patch_of
from harness.records import RequestRecord, Role
from harness.wording import plain, send_name
from vocabulary.ledger import Cause

MAX_ROWS = 36
_Key = tuple[str, str, str, str, int]


def ledger_difference(base: Iterable[RequestRecord], candidate: Iterable[RequestRecord]) -> Figure | None:
    """Diverging bars: tokens a cause lost (left) and gained (right) from base to candidate, per prompt sent to both.

    Sends are joined by workload, label, prompt hash and repetition; those with equal ledgers are left out. None where
    all are equal.
    """
    before = {_key(r): r for r in base if r.role is Role.PROBE and r.ledger}
    after = {_key(r): r for r in candidate if r.role is Role.PROBE and r.ledger}
    rows = [(before[key], after[key]) for key in before if key in after and before[key].ledger != after[key].ledger]
    if not rows:
        return None
    rows.sort(key=lambda row: -sum(map(abs, _change(*row).values())))
    chosen = rows[:MAX_ROWS]
    present: set[Cause] = set()
    with style():
        figure = Figure(figsize=(9.5, 1.7 + 0.3 * len(chosen)), layout="constrained")
        axis = figure.subplots()
        for y, row in enumerate(chosen):
            present |= _bars(axis, y, _change(*row))
        axis.axvline(0, color="#666666", lw=0.8)
        names = [
            plain(f"{send_name(old)}, L {old.prompt_len}: hit {old.hit_len} -> {new.hit_len}") for old, new in chosen
        ]
        axis.set(yticks=range(len(chosen)), yticklabels=names, ylim=(len(chosen) - 0.4, -0.6))
        axis.set_xlabel("tokens less                                        tokens more")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        old, new = chosen[0]
        names_of = (plain(f"{old.engine_label} {old.version}"), plain(f"{new.engine_label} {new.version}"))
        part = f" ({len(chosen)} of {len(rows)} that differ)" if len(chosen) < len(rows) else ""
        legend = figure.legend(
            handles=[patch_of(cause) for cause in Cause if cause in present],
            title=f"From {names_of[0]} to {names_of[1]}: what became of the same prompts{part}",
            loc="outside upper left",
            ncols=6,
            frameon=False,
            alignment="left",
        )
        legend.get_title().set(fontweight="bold", fontsize=10)
    return figure


def _key(request: RequestRecord) -> _Key:
    return (request.model, request.workload, request.label, request.prompt_sha256, request.repetition)


def _change(old: RequestRecord, new: RequestRecord) -> dict[Cause, int]:
    before, after = old.by_cause(), new.by_cause()
    return {c: d for c in Cause if (d := after.get(c, 0) - before.get(c, 0))}


def _bars(axis: Axes, y: int, change: dict[Cause, int]) -> set[Cause]:
    ends = {True: 0, False: 0}
    for cause, tokens in change.items():
        patch = patch_of(cause)
        axis.barh(
            y,
            tokens,
            left=ends[tokens > 0],
            height=0.72,
            facecolor=patch.get_facecolor(),
            hatch=patch.get_hatch(),
            edgecolor=patch.get_edgecolor(),
            linewidth=0,
        )
        ends[tokens > 0] += tokens
    return set(change)
