"""A sweep's results as tables, and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from harness.simulate.curve import Curve
from harness.simulate.job import CellResult, Job
from harness.wording import percent
from vocabulary.ledger import Cause

MOST_CAUSES = 5


def results_table(done: Mapping[str, CellResult]) -> Table:
    """Laws and options with their hit rate and where the rest of the tokens went."""
    table = Table("law and options", "requests", "prompt tokens", "hit rate", "recomputed, by cause", "refused")
    for column in (1, 2, 3, 5):
        table.columns[column].justify = "right"
    for cell in done.values():
        if cell.base is None:
            totals = cell.totals
            table.add_row(
                escape(label(cell)),
                f"{totals.requests:,}",
                f"{totals.prompt_tokens:,}",
                percent(totals.hit_rate),
                _causes(cell),
                f"{totals.refused:,}" if totals.refused else "",
            )
    return table


def gains_table(base: CellResult, changed: Sequence[CellResult]) -> Table:
    """What each change would save of the tokens that `base` recomputes, the most first."""
    table = Table(
        "change",
        "recomputed",
        "less",
        "of it",
        "cost",
        title=escape(label(base)),
        title_justify="left",
        show_lines=False,
    )
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
    now = base.totals.recomputed
    table.add_row("as it is", f"{now:,}", "", "", "")
    same = [cell for cell in changed if cell.totals == base.totals]
    for cell in sorted((cell for cell in changed if cell not in same), key=lambda cell: cell.totals.recomputed):
        if cell.totals.refused != base.totals.refused:
            table.add_row(escape(cell.change or ""), "-", "", "", f"refuses {cell.totals.refused:,} requests")
            continue
        saved = now - cell.totals.recomputed
        share = f"{100 * saved / now:.1f} %" if now else ""
        table.add_row(escape(cell.change or ""), f"{cell.totals.recomputed:,}", f"{saved:,}", share, cell.cost or "")
    if same:
        table.caption = escape(f"nothing changes with {'; '.join(cell.change or '' for cell in same)}")
        table.caption_justify = "left"
    return table


def curve_table(curve: Curve, sizes: Sequence[int]) -> Table:
    """Hit rate over pool sizes, in tokens."""
    table = Table("pool, tokens", "blocks", "hit rate", title=f"block_size={curve.unit}", title_justify="left")
    for column in table.columns:
        column.justify = "right"
    for size in sizes:
        table.add_row(
            f"{size:,}", f"{size // curve.unit:,}", percent(curve.hit_tokens(size // curve.unit) / curve.prompt_tokens)
        )
    table.add_row("no limit", f"{curve.enough:,}", percent(curve.ceiling / curve.prompt_tokens))
    return table


def over_time_table(cell: CellResult, most: int = 24) -> Table:
    """Hit rate and causes as the trace goes on; neighbouring stretches are joined where there are many."""
    table = Table(
        "from", "requests", "hit rate", "recomputed, by cause", title=escape(label(cell)), title_justify="left"
    )
    for column in (0, 1, 2):
        table.columns[column].justify = "right"
    step = -(-len(cell.buckets) // most)
    for at in range(0, len(cell.buckets), step):
        joined = deepcopy(cell.buckets[at])
        for bucket in cell.buckets[at + 1 : at + step]:
            joined.add(bucket)
        table.add_row(
            f"{joined.start:,}",
            f"{joined.requests:,}",
            percent(joined.hit_rate),
            _by_cause(joined.by_cause, joined.prompt_tokens),
        )
    return table


def as_json(
    done: Mapping[str, CellResult], curves: Mapping[int, Curve], sizes: Mapping[int, Sequence[int]]
) -> dict[str, Any]:
    """All numbers of the tables."""
    return {
        "cells": {name: asdict(cell) for name, cell in done.items()},
        "curves": {
            str(unit): {
                "prompt_tokens": curve.prompt_tokens,
                "prompts_ending_on_a_block": curve.whole,
                "ceiling_tokens": curve.ceiling,
                "points": [{"pool_tokens": size, "hit_tokens": curve.hit_tokens(size // unit)} for size in sizes[unit]],
            }
            for unit, curve in curves.items()
        },
    }


def label(cell: CellResult | Job) -> str:
    """Law and options in one line."""
    if isinstance(cell, Job):
        return cell.label
    options = " ".join(
        f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in cell.options.items()
    )
    return f"{cell.law} {options}".rstrip()


def _causes(cell: CellResult) -> str:
    return _by_cause(cell.totals.by_cause, cell.totals.prompt_tokens)


def _by_cause(by_cause: Mapping[Cause, int], tokens: int) -> str:
    found = sorted((pair for pair in by_cause.items() if pair[0] is not Cause.REUSED), key=lambda pair: -pair[1])
    return ", ".join(f"{cause.value} {percent(count / tokens)}" for cause, count in found[:MOST_CAUSES])
