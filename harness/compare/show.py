"""A comparison as tables for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.compare.changes import SendChange
from harness.compare.comparison import CellComparison, Comparison
from harness.compare.latency import LatencyLine
from harness.report import Raw, escape
from harness.statistics import Verdict
from harness.wording import count, milliseconds, number, span

COMPARISON_SCHEMA = "hitparity.comparison/1"
SHOWN = 12
"""Changes printed in full; the rest is counted, and stands in the Markdown and the JSON."""
FIELDS = 4
"""Differing fields named in the headline."""
STYLES = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Sends whose ledgers changed alike."""

    where: str
    sends: str
    """The first one's name, and how many more."""
    lengths: str
    hits: str
    sentence: str


def change_groups(changes: Sequence[SendChange]) -> list[ChangeGroup]:
    """Changes of one workload with the same causes before and after become one line, told by the widest of them."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[SendChange]] = {}
    for change in changes:
        key = (change.where, tuple(change.base_causes), tuple(change.candidate_causes))
        found.setdefault(key, []).append(change)
    return [_group(alike) for alike in found.values()]


def _group(alike: Sequence[SendChange]) -> ChangeGroup:
    widest = max(alike, key=lambda change: abs(change.less or 0))
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    return ChangeGroup(
        where=widest.where,
        sends=f"{widest.send}{more}",
        lengths=span(change.prompt_len for change in alike),
        hits=f"{count(widest.base_hit)} -> {count(widest.candidate_hit)}",
        sentence=widest.sentence,
    )


def comparison_tables(seen: Comparison) -> list[RenderableType]:
    """The verdict, what changed, the times, and what limits them."""
    shown: list[RenderableType] = [_headline(seen)]
    cells = Table("workload", "sends", "changed", "reused", "findings", box=box.SIMPLE_HEAD, title_justify="left")
    for cell in seen.cells:
        cells.add_row(*(Text(value) for value in _cell_row(cell)))
    shown.append(cells)
    if groups := change_groups(seen.changes):
        changed = Table("send", "L", "hit", "what changed", box=box.SIMPLE_HEAD, title="Changes", title_justify="left")
        for group in groups[:SHOWN]:
            name = Text(f"{group.sends}\n{group.where}")
            changed.add_row(name, Text(group.lengths), Text(group.hits), Text(group.sentence))
        shown.append(changed)
        if len(groups) > SHOWN:
            shown.append(Text(f"and {number(len(groups) - SHOWN, 'kind')} of changes more (--markdown, --json)"))
    if seen.latency:
        times = Table(
            "pairs of", "n", "base ms", "candidate ms", "median of paired ratios", "verdict", box=box.SIMPLE_HEAD
        )
        for line in seen.latency:
            times.add_row(
                Text(line.name),
                _pairs(line),
                milliseconds(line.base_ns),
                milliseconds(line.candidate_ns),
                line.ratio.change,
                line.verdict.value if line.verdict else "-",
            )
        shown.append(times)
    for title, sentences in _lists(seen):
        shown.append(Group(Text(title, "bold"), *(Text(f"- {sentence}") for sentence in sentences)))
    return shown


def comparison_markdown(seen: Comparison) -> str:
    """The same for a pull request or a CI step summary; every change is listed."""
    lines = [
        f"## hitparity compare: {seen.verdict.value}",
        "",
        f"{escape(seen.base)} against {escape(seen.candidate)}{_about(seen)}.",
        "",
        *(f"- {escape(sentence)}" for sentence in seen.why),
        "",
        *_rows(("workload", "sends", "changed", "tokens reused", "new findings"), map(_cell_row, seen.cells)),
    ]
    groups = change_groups(seen.changes)
    if groups:
        rows = ((g.where, g.sends, g.lengths, g.hits, _code(g.sentence)) for g in groups)
        lines += ["", "### Changes", "", *_rows(("workload", "send", "L", "hit", "what changed"), rows)]
    if seen.latency:
        times = (
            (
                line.name,
                _pairs(line),
                milliseconds(line.base_ns),
                milliseconds(line.candidate_ns),
                line.ratio.change,
                line.verdict.value if line.verdict else "-",
            )
            for line in seen.latency
        )
        heads = ("pairs of", "pairs", "base ms", "candidate ms", "median of paired ratios", "verdict")
        lines += ["", "### Times", "", *_rows(heads, times)]
    for title, sentences in _lists(seen):
        lines += ["", f"### {title}", "", *(f"- {escape(sentence)}" for sentence in sentences)]
    return "\n".join(lines) + "\n"


def comparison_json(seen: Comparison) -> str:
    """Everything, with sorted keys; the same comparison gives the same text."""
    document = asdict(seen) | {"schema": COMPARISON_SCHEMA, "exit_code": int(seen.exit_code)}
    return json.dumps(document, indent=1, sort_keys=True, default=sorted) + "\n"


def _pairs(line: LatencyLine) -> str:
    starts = f" of {line.ratio.starts} starts" if line.ratio.starts > 1 else ""
    return f"{line.ratio.pairs}{starts}"


def _headline(seen: Comparison) -> RenderableType:
    head = Text.assemble((seen.verdict.value.upper(), STYLES[seen.verdict]), f"  {seen.base} -> {seen.candidate}")
    head.append(_about(seen))
    return Group(head, *(Text(f"- {sentence}") for sentence in seen.why))


def _about(seen: Comparison) -> str:
    """What the comparison is about, with the values."""
    told = list(dict.fromkeys(f"{d.field} {d.base} -> {d.candidate}" for cell in seen.cells for d in cell.differing))
    more = [f"and {len(told) - FIELDS} fields more"] if len(told) > FIELDS else []
    values = f" ({', '.join([*told[:FIELDS], *more])})" if told else ""
    return f", about {', '.join(seen.about)}{values}" if seen.about else ""


def _cell_row(cell: CellComparison) -> tuple[str, str, str, str, str]:
    sends = f"{cell.sends}{f' (+{cell.unlike_sends} unlike)' if cell.unlike_sends else ''}"
    reused = f"{count(cell.base_reused)} -> {count(cell.candidate_reused)}"
    return cell.where, sends, str(len(cell.changes)), reused, str(len(cell.new_findings))


def _lists(seen: Comparison) -> list[tuple[str, Sequence[str]]]:
    findings = [finding for cell in seen.cells for finding in cell.new_findings]
    named = [
        ("New findings", findings),
        ("Not compared", seen.gaps),
        ("Believe the times less, because", seen.warnings),
    ]
    return [(title, sentences) for title, sentences in named if sentences]


def _code(sentence: str) -> Raw:
    """Backticks around causes stay what they are in Markdown."""
    return Raw(escape(sentence).replace("\\`", "`"))


def _rows(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [heads, tuple("---" for _ in heads), *(tuple(escape(value) for value in row) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]
