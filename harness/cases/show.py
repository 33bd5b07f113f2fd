"""A difference in the terminal: what was stated and what came, as two ledgers one above the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.text import Text

from harness.cases.evaluate import Answered, Evaluated
from harness.explain.picture import intervals_text, legend, picture, picture_width
from harness.wording import plain
from vocabulary.ledger import Ledger

LABEL_WIDTH = 12


def difference(evaluated: Evaluated, answer: Answered, console: Console) -> Iterator[RenderableType]:
    """Lines for one request that differs."""
    case = evaluated.placed.case
    head = f"{evaluated.placed.where} {case.id}, request {answer.index}, {case.engine} by {evaluated.level}"
    yield Text(plain(f"{head}: {'; '.join(answer.differences)}"), style="bold")
    yield from ledgers([("stated", answer.stated_ledger), (evaluated.level.value, answer.ledger)], console)
    for finding in answer.findings:
        yield Text(f"  finding {finding.kind.value}: {finding.detail}")


def ledgers(pairs: Sequence[tuple[str, Ledger]], console: Console) -> Iterator[RenderableType]:
    """Named ledgers as pictures with their intervals."""
    width = picture_width(console, LABEL_WIDTH + 4)
    for name, ledger in pairs:
        yield Text.assemble(f"  {name:<{LABEL_WIDTH}}", picture(ledger, width))
        yield Text(f"  {'':<{LABEL_WIDTH}}{intervals_text(ledger)}")
    yield Text.assemble("  ", legend([ledger for _, ledger in pairs]))


def finding_line(evaluated: Evaluated, answer: Answered) -> str:
    """One line for the findings of a request that came out as stated."""
    details = "; ".join(f"{finding.kind.value}: {finding.detail}" for finding in answer.findings)
    return escape(plain(f"{evaluated.placed.where} {evaluated.placed.case.id}, request {answer.index}: {details}"))
