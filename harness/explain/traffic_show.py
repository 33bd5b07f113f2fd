"""What a law says about a whole trace, for the terminal and for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from harness.explain.traffic import Traffic
from harness.wording import number, percent, plain

MOST_CHANGES = 6


def lines(found: Sequence[Traffic], trace: str) -> Iterator[RenderableType]:
    """Everything to print."""
    for each in found:
        options = " ".join(f"{key}={_text(value)}" for key, value in each.options.items())
        share = each.reused / each.prompt_tokens if each.prompt_tokens else None
        yield Text(plain(f"{each.law_id} {options}".rstrip()), style="bold")
        yield Text(
            f"  {number(each.requests, 'request')}, {each.prompt_tokens:,} prompt tokens, {each.reused:,} of them "
            f"reused ({percent(share)})"
        )
        if each.refused:
            yield Text(f"  {number(each.refused, 'request')} not covered by the law: {plain(each.first_refusal or '')}")
        yield from _reported(each)
        yield _causes(each)
        yield from _changes(each)
        yield Text("")
    if found:
        yield Text(
            f"one request: hitparity explain {plain(trace)} --request LINE --engine {found[0].law_id}", style="dim"
        )


def as_json(found: Sequence[Traffic]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        asdict(each) | {"causes": {cause.value: asdict(total) for cause, total in each.causes.items()}}
        for each in found
    ]


def _reported(each: Traffic) -> Iterator[RenderableType]:
    if not each.reported:
        return
    if not each.disagreeing:
        yield Text(f"  the engine reported the same hit for all {each.reported} requests whose hit the trace tells")
        return
    some = ", ".join(f"line {d.line}: {d.reported_len}, law {d.hit_len}" for d in each.disagreements)
    yield Text(
        f"  the engine reported another hit for {each.disagreeing} of {each.reported} requests ({some}); was it "
        f"configured in another way, its pool smaller, or were requests served at the same time?",
        style="yellow",
    )


def _causes(each: Traffic) -> RenderableType:
    table = Table("recomputed because", "tokens", "share", "requests", "most in", box=None, pad_edge=False)
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
    for cause, total in each.by_weight():
        behind = ", ".join(f"line {b.line} ({b.tokens} of {b.prompt_len})" for b in total.behind[:3])
        share = percent(total.tokens / each.prompt_tokens)
        table.add_row(f"  {cause.value}", f"{total.tokens:,}", share, f"{total.requests:,}", behind)
    return table


def _changes(each: Traffic) -> Iterator[RenderableType]:
    if each.changes is None:
        return
    better = [change for change in each.changes if change.saved_tokens > 0]
    lost = each.prompt_tokens - each.reused
    if not better:
        yield Text("  no single option that the law reads lets this traffic recompute less")
    for change in better[:MOST_CHANGES]:
        share = percent(change.saved_tokens / lost)
        yield Text(f"  - {change.saved_tokens:>9,} tokens ({share})  {change.change}  (cost: {change.cost})")
    worse = [change for change in each.changes if change.saved_tokens < 0]
    for change in worse[-2:]:
        yield Text(f"  + {-change.saved_tokens:>9,} tokens  {change.change}", style="dim")


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
