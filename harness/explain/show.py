"""Explanations side by side: one line per engine or release, then what binds and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from harness.explain.explanation import Explanation
from harness.explain.picture import intervals_text, legend, picture, picture_width
from harness.wording import plain

HIT_WIDTH = 22
MOST_LEVERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request by one engine configuration."""

    label: str
    """Such as "vllm@0.30"."""
    options: dict[str, Any]
    explanation: Explanation | None
    refused: str | None = None
    """Why there is no explanation."""
    observed_hit_len: int | None = None
    """Of a recorded request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One request of the sequence, by every engine."""

    title: str
    rows: tuple[Row, ...]


def lines(blocks: Sequence[Block], console: Console) -> Iterator[RenderableType]:
    """Everything to print."""
    for block in blocks:
        yield Text(plain(block.title), style="bold")
        yield from _pictures(block, console)
        for row in block.rows:
            yield from _words(row, several=len(block.rows) > 1)
        yield Text("")
    ledgers = [row.explanation.ledger for block in blocks for row in block.rows if row.explanation]
    if ledgers:
        yield legend(ledgers)


def _pictures(block: Block, console: Console) -> Iterator[RenderableType]:
    label_width = max(len(plain(row.label)) for row in block.rows) + 2
    width = picture_width(console, label_width + HIT_WIDTH)
    for row in block.rows:
        label = f"  {plain(row.label):<{label_width}}"
        if row.explanation is None:
            yield Text(f"{label}{plain(row.refused or '')}")
            continue
        hit = f"  hit {row.explanation.hit_len} of {row.explanation.prompt_len}"
        yield Text.assemble(label, picture(row.explanation.ledger, width), hit)


def _words(row: Row, *, several: bool) -> Iterator[RenderableType]:
    why = row.explanation
    if why is None:
        return
    name = f"{plain(row.label)}: " if several else ""
    yield Text(f"  {name}{intervals_text(why.ledger)}")
    yield Text(f"    {why.sentence}")
    if row.observed_hit_len is not None and row.observed_hit_len != why.hit_len:
        yield Text(f"    the engine reported {row.observed_hit_len}, the law says {why.hit_len}", style="red")
    if why.levers == ():
        yield Text("    no option or release that the laws know, nor three options together, lengthens it")
    for lever in (why.levers or ())[:MOST_LEVERS]:
        yield Text(f"    + {lever.hit_len:>7}  {lever.change}  (cost: {lever.cost})")


def as_json(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {
            "request": block.title,
            "answers": [
                {
                    "engine": row.label,
                    "options": row.options,
                    "refused": row.refused,
                    "observed_hit_len": row.observed_hit_len,
                    **(_fields(row.explanation) if row.explanation else {}),
                }
                for row in block.rows
            ],
        }
        for block in blocks
    ]


def _fields(why: Explanation) -> dict[str, Any]:
    return {
        "prompt_len": why.prompt_len,
        "lcp_len": why.lcp_len,
        "hit_len": why.hit_len,
        "position_start": why.position_start,
        "ledger": [{"start": i.start, "end": i.end, "cause": i.cause.value} for i in why.ledger.intervals],
        "per_group": why.per_group,
        "junction": why.junction,
        "backed_len": why.backed_len,
        "approximate_len": why.approximate_len,
        "binding": None if why.binding is None else why.binding.value,
        "sentence": why.sentence,
        "one_more_hit": why.one_more_hit,
        "again_hit": why.again_hit,
        "levers": [
            {"change": lever.change, "cost": lever.cost, "hit_len": lever.hit_len} for lever in why.levers or ()
        ],
    }
