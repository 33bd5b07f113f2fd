"""Time to first token: cold against warm as slopes, and over the prompt's length."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from harness.drawing import engine_colour, style
from harness.records import RequestRecord, Role
from harness.savings import Savings, savings
from harness.wording import number, plain
from vocabulary.engine import Fidelity

COLUMNS = 3
SIMILAR = 0.9
"""Prompts that differ by less than this ratio are drawn together."""
POINTS, APART = 64, 1.4
"""Prompt lengths on an axis: of so many longest, those that lie so far apart (ratio of neighbours)."""


def ttft_slopes(requests: Iterable[RequestRecord], *, floor_ms: float | None = None) -> Figure | None:
    """A panel per engine configuration: each cold request's TTFT joined to the warm one that followed it.

    Thin lines are pairs (the n-th cold and the n-th warm request of one prompt length), the thick line joins the
    medians, whiskers are the quartiles. Of each model the prompts of about one length are shown, the one with the most
    pairs. `floor_ms`: TTFT of our client against a server that computes nothing. None without pairs.
    """
    panels: dict[str, list[tuple[float, float]]] = {}
    engines: dict[str, str] = {}
    lengths: dict[str, set[int]] = {}
    for label, engine, length, pairs in _pairs(requests):
        panels.setdefault(label, []).extend(pairs)
        lengths.setdefault(label, set()).add(length)
        engines[label] = engine
    if not panels:
        return None
    columns = min(COLUMNS, len(panels))
    with style():
        rows = math.ceil(len(panels) / columns)
        figure = Figure(figsize=(2.7 * columns + 0.8, 0.9 + 3.0 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        for axis, (label, pairs) in zip(axes.flat, panels.items(), strict=False):
            colour = engine_colour(engines[label])
            for pair in pairs:
                axis.plot((0, 1), pair, color=colour, lw=0.6, alpha=0.45)
            for x, values in enumerate(zip(*pairs, strict=True)):
                middle = statistics.median(values)
                low, high = _quartiles(values)
                axis.errorbar(x, middle, [[middle - low], [high - middle]], color=colour, fmt="os"[x], ms=6, capsize=3)
                axis.annotate(
                    f"{middle:.1f} ms",
                    (x, middle),
                    ((-6, 6)[x], 0),
                    textcoords="offset points",
                    ha=("right", "left")[x],
                    va="center",
                    fontsize=7.5,
                )
            medians = [statistics.median(values) for values in zip(*pairs, strict=True)]
            axis.plot((0, 1), medians, color=colour, lw=2)
            if floor_ms is not None:
                axis.axhline(floor_ms, color="#888888", lw=0.8, ls="--")
                axis.annotate(
                    "client floor", (0.5, floor_ms), (0, 2), textcoords="offset points", fontsize=7, ha="center"
                )
            seen = " to ".join(map(str, sorted({min(lengths[label]), max(lengths[label])})))
            found = f"L = {seen}: {medians[0] / medians[1]:.1f}x, {number(len(pairs), 'pair')}"
            axis.set_title(f"{_title(label)}\n{found}", color=colour)
            axis.set(yscale="log", xlim=(-0.75, 1.75), xticks=(0, 1), xticklabels=("cold", "warm"))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        figure.supylabel("time to first token (ms, log)", fontsize=9)
        title = "Cold against warm, pair by pair; compare within a panel only"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def ttft_over_prefix(requests: Iterable[RequestRecord], *, warmed_up: bool = False) -> Figure | None:
    """A panel per engine configuration: median cold and warm TTFT over the prompt's length, with the speed-up.

    The shape in which published tables report prefix caching. `warmed_up`: as in `harness.savings`.
    None where no engine has two lengths cold and warm.
    """
    panels: dict[str, list[Savings]] = {}
    for row in savings(requests, warmed_up=warmed_up):
        panels.setdefault(f"{row.engine_label}\n{row.model}", []).append(row)
    # The longest hit of a length stands for it.
    best = {label: _longest_hits(rows) for label, rows in panels.items()}
    best = {label: rows for label, rows in best.items() if len(rows) > 1}
    if not best:
        return None
    columns = min(COLUMNS, len(best))
    with style():
        lines = math.ceil(len(best) / columns)
        figure = Figure(figsize=(3.4 * columns + 0.6, 0.9 + 2.9 * lines), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for axis in list(axes.flat)[len(best) :]:
            axis.set_visible(False)
        for axis, (label, rows) in zip(axes.flat, best.items(), strict=False):
            colour = engine_colour(rows[0].engine)
            lengths = [row.prompt_len for row in rows]
            axis.plot(lengths, [row.cold_ttft_ns / 1e6 for row in rows], "o-", color=colour, label="cold")
            axis.plot(lengths, [row.warm_ttft_ns / 1e6 for row in rows], "s--", color=colour, mfc="white", label="warm")
            for row in rows:
                axis.annotate(
                    f"{row.cold_ttft_ns / row.warm_ttft_ns:.2f}x",
                    (row.prompt_len, row.warm_ttft_ns / 1e6),
                    (0, -11),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7.5,
                )
            axis.set_title(_title(label), color=colour)
            axis.set(xscale="log", yscale="log", xticks=lengths, xticklabels=[str(length) for length in lengths])
            axis.minorticks_off()
            axis.margins(0.15)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.legend(frameon=False, fontsize=8, loc="upper left")
        figure.supxlabel("prompt length (tokens)", fontsize=9)
        figure.supylabel("median time to first token (ms)", fontsize=9)
        title = "Time to first token over the prompt's length"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def _pairs(requests: Iterable[RequestRecord]) -> list[tuple[str, str, int, list[tuple[float, float]]]]:
    """Per engine and prompt length, the n-th cold with the n-th warm request, in milliseconds; of similar lengths."""
    groups: dict[tuple[str, str, str, int], list[RequestRecord]] = {}
    for request in requests:
        timed = request.ttft_ns is not None and request.hit_len is not None and request.fidelity is Fidelity.SERVED
        if timed and request.role is Role.PROBE:
            key = (request.engine_label, request.workload, request.model, request.prompt_len)
            groups.setdefault(key, []).append(request)
    found = []
    counts: dict[str, Counter[int]] = {}
    for (_, _, model, length), group in groups.items():
        cold = [r.ttft_ns / 1e6 for r in group if r.hit_len == 0 and r.ttft_ns]
        warm = [r.ttft_ns / 1e6 for r in group if r.hit_len and r.ttft_ns]
        if pairs := list(zip(cold, warm, strict=False)):
            found.append((model, f"{group[0].engine_label}\n{group[0].model}", group[0].engine, length, pairs))
            counts.setdefault(model, Counter())[length] += len(pairs)
    chosen = {model: _commonest(of_model) for model, of_model in counts.items()}
    return [(label, engine, n, pairs) for model, label, engine, n, pairs in found if _similar(n, chosen[model])]


def _similar(length: int, longest: int) -> bool:
    return SIMILAR * longest <= length <= longest


def _commonest(counts: Counter[int]) -> int:
    """The length up to which, from a little below it, most pairs lie; of several the longest."""
    return max(counts, key=lambda top: (sum(n for length, n in counts.items() if _similar(length, top)), top))


def _title(label: str) -> str:
    return "\n".join(plain(line) for line in label.splitlines())


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _longest_hits(rows: Sequence[Savings]) -> list[Savings]:
    by_length: dict[int, Savings] = {}
    for row in sorted(rows, key=lambda row: row.hit_len):
        by_length[row.prompt_len] = row
    kept: list[int] = []
    for length in sorted(by_length, reverse=True)[:POINTS]:
        if not kept or length * APART <= kept[-1]:
            kept.append(length)
    return [by_length[length] for length in reversed(kept)]
