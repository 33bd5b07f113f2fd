"""A run of `pairs` as a Markdown page: how it was measured, the numbers, the figures, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.latency import Latency, both, interval
from harness.overview import machine_lines
from harness.report import escape
from harness.store import Run

FIRST = (
    "engine",
    "computes in",
    "L",
    "hit",
    "pairs",
    "starts",
    "warm faster",
    "cold > warm ms",
    "x",
    "95 %",
    "floor ms",
)
REST = ("engine", "L", "first-to-last ms", "TPOT ms", "total ms", "total x")

PROTOCOL = (
    "A pair is one prompt timed cold (after a reset, it hits nothing) and timed warm (behind another prompt with the "
    "same beginning, it hits that). Pairs alternate in which half comes first. A pair counts if the cold request hit "
    "0, the warm one hit what the engine's law says, and both generated the same tokens. Engines ran one at a time, "
    "each started several times; compare within a row. *x* is median cold / median warm, and 95 % the interval of the "
    "median of the pairs' ratios: with few pairs hardly more than their range. *floor* is our client against a server "
    "that computes nothing, measured first."
)


def latency_page(
    run: Run, rows: Sequence[Latency], gaps: Sequence[str], floors: Mapping[int, float], figures: Sequence[str]
) -> str:
    """The page; `figures` are addresses relative to it. The same run gives the same text."""
    dtypes = {cell.engine_label: _computes_in(cell.facts or {}) for cell in run.cells}
    models = ", ".join(dict.fromkeys(row.model for row in rows))
    machine = ", ".join(f"{name} {value}" for name, value in machine_lines(run))
    ordered = sorted(rows, key=lambda row: (row.model, row.engine_label, row.prompt_len))
    first = (
        (
            row.engine_label,
            dtypes.get(row.engine_label, "?"),
            str(row.prompt_len),
            str(row.hit_len),
            str(row.pairs),
            str(row.starts),
            f"{row.warm_faster} of {row.pairs}",
            both(row.ttft),
            f"{row.ttft.speedup:.2f}",
            interval(row),
            f"{floors[row.prompt_len]:.2f}",
        )
        for row in ordered
    )
    rest = (
        (row.engine_label, str(row.prompt_len), *map(both, (row.first_to_last, row.tpot, row.total)), _speedup(row))
        for row in ordered
    )
    return "\n".join(
        [
            "# Latency: what a hit saves",
            "",
            "<!-- Written by `make latency`; do not edit. -->",
            "",
            f"{escape(models)}. {escape(machine)}. Started {run.manifest.started}.",
            "",
            PROTOCOL,
            "",
            "## Time to first token",
            "",
            *_table(FIRST, first),
            "",
            "## After the first token",
            "",
            "Cold > warm. First-to-last: first to last generated token; TPOT: that per token; total: the request.",
            "",
            *_table(REST, rest),
            "",
            *(line for figure in figures for line in (f"![{_title(figure)}]({figure})", "")),
            *(["## Left out", "", *(f"- {escape(gap)}" for gap in gaps), ""] if gaps else []),
        ]
    )


def _computes_in(facts: Mapping[str, Any]) -> str:
    """Type of the arithmetic, where the engine tells it apart from the weights'."""
    return str(facts.get("options", {}).get("compute_dtype") or facts.get("dtype", "?"))


def _speedup(row: Latency) -> str:
    return f"{row.total.speedup:.2f}"


def _title(figure: str) -> str:
    return figure.rsplit("/", 1)[-1].removesuffix(".svg").replace("-", " ")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [tuple(heads), tuple("---" for _ in heads), *(tuple(escape(cell) for cell in row) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]
