"""The hand-over answers as a table for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from harness.handover import Answer, Numbers, Question, System
from harness.handover_observe import GroupTables, Live
from harness.listing import enum_meanings
from reference_engine.laws.deepinfer.replay import HandOver


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One system as it is shown."""

    system: System
    numbers: Numbers | None = None
    """None: no prompt was given, or the law does not cover it (`remarks` say why)."""
    remarks: tuple[str, ...] = ()
    observed: Mapping[str, str] = field(default_factory=dict)
    """What an environment of this machine showed: name to value."""
    details: HandOver | None = None
    """DeepInfer with a sliding window: window, ring and consumer rows of the prompt."""

    def cell(self, question: Question) -> str:
        """Answer, formula, numbers and source, a line each."""
        return "\n".join(_parts(self.system.answer(question), self.numbers))


def _parts(answer: Answer, numbers: Numbers | None) -> Iterable[str]:
    yield answer.text
    if answer.formula:
        yield answer.formula
    if numbers is not None and answer.numbers:
        yield f"= {numbers.fill(answer.numbers)}"
    yield f"[{answer.evidence}: {answer.source}]"


def tables(columns: Sequence[Column]) -> list[RenderableType]:
    """The answers, question by question: eight columns of prose fit no terminal. Then what was seen, and remarks."""
    meanings = enum_meanings(Question)
    table = Table("question", "system", "answer", show_lines=True)
    table.columns[0].max_width, table.columns[1].max_width = 24, 24
    for question in Question:
        for index, column in enumerate(columns):
            table.add_row("" if index else meanings[question], Text(_name(column)), Text(column.cell(question)))
    shown: list[RenderableType] = [table]
    shown.extend(_observed(column) for column in columns if column.observed)
    shown.extend(_details(column, column.details) for column in columns if column.details)
    shown.extend(Text(f"{column.system.system}: {remark}") for column in columns for remark in column.remarks)
    return shown


def markdown(columns: Sequence[Column]) -> str:
    """One table: a row per question, a column per system; observations and remarks below."""
    meanings = enum_meanings(Question)
    rows = [["", *(_name(column).replace("\n", " ") for column in columns)]]
    rows += [[meanings[q], *(column.cell(q) for column in columns)] for q in Question]
    lines = [_row(rows[0]), _row(["---"] * len(rows[0])), *(_row(row) for row in rows[1:])]
    for column in columns:
        if column.observed:
            lines += ["", f"Observed, {column.system.system}: " + "; ".join(_pairs(column.observed)) + "."]
        if column.details:
            head, *details = _detail_rows(column.details)
            lines += ["", _row(head), _row(["---"] * len(head)), *(_row(row) for row in details)]
        lines += [f"\n{column.system.system}: {remark}" for remark in column.remarks]
    return "\n".join(lines) + "\n"


def _name(column: Column) -> str:
    law = column.numbers.law if column.numbers else None
    return f"{column.system.system}\n{column.system.release}" + (f"\nlaw {law}" if law else "")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"


def _pairs(observed: Mapping[str, str]) -> list[str]:
    return [f"{name} {value}" for name, value in observed.items()]


def _observed(column: Column) -> Table:
    table = Table("observed here", "value", title=f"{column.system.system}, on this machine", title_justify="left")
    for name, value in column.observed.items():
        table.add_row(Text(name), Text(value))
    return table


_DETAIL_HEAD = (
    "chunk",
    "zero-filled",
    "ring slots read",
    "first row's keys",
    "full window from row",
    "ring writes",
    "consumer rows",
    "consumer ring writes",
)


def _detail_rows(details: HandOver) -> list[list[str]]:
    rows = [list(_DETAIL_HEAD)]
    for chunk in details.chunks:
        slots = ", ".join(f"{first}-{end - 1}" for first, end in chunk.ring_reads) or "none"
        full = "none" if chunk.full_window_row is None else str(chunk.full_window_row)
        numbers = (chunk.first_row_keys, full, chunk.ring_writes, chunk.consumer_rows, chunk.consumer_ring_writes)
        rows.append([f"[{chunk.start}, {chunk.end})", str(chunk.zero_filled), slots, *map(str, numbers)])
    return rows


def _details(column: Column, details: HandOver) -> Table:
    title = (
        f"{column.system.system}: start {details.start}, valid from {details.valid_start}; saved rows: producers "
        f"{details.saved_by_producers}, consumers {details.saved_by_consumers}"
    )
    if details.approximate:
        title += f"; approximate in [{details.approximate[0]}, {details.approximate[1]})"
    head, *rows = _detail_rows(details)
    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def live_table(live: Live) -> Table:
    """The reference engine's real hand-over of one request."""
    tables = live.seen.tables
    read_only, block = tables.read_only_blocks, tables.block_len
    table = Table(
        "what", "value", title=f"reference engine under {live.law}: the hand-over it made", title_justify="left"
    )
    unchanged = "the same bits before and after the request" if tables.read_only_unchanged else "CHANGED"
    rows = {
        "hit, position start": f"{live.seen.hit_len}, {live.seen.position_start}",
        "block table": f"{runs(tables.block_table)} ({len(tables.block_table)} blocks of {block} tokens)",
        "reference counts": counts(tables.holders),
        "positions": f"{tables.positions[0]} ... {tables.positions[1] - 1}",
        "query lengths": f"query_start_loc {list(tables.query_start_loc)}: {live.seen.first_query_len} rows",
        "sequence length": f"{tables.seq_len} keys ({'gathered' if live.seen.keys_gathered else 'a view of the pool'})",
        "slot mapping of new tokens": runs(tables.slot_mapping),
        "read-only": f"blocks {runs(tables.block_table[:read_only])}: {read_only * block} tokens; {unchanged}",
    }
    rows["reference counts at the end"] = counts(tables.holders_after)
    rows["prefill steps"] = ", ".join(f"[{start}, {end})" for start, end in live.steps)
    for group in tables.groups:
        rows |= {f"{group.group}: {name}": value for name, value in _group_rows(group).items()}
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table


def _group_rows(group: GroupTables) -> dict[str, str]:
    if group.stored:
        restored = (
            "none" if group.restored is None else f"of position {group.restored[0]}, from place {group.restored[1]}"
        )
        stored = ", ".join(f"{position} in place {place}" for position, place in group.stored)
        return {"state restored": restored, "states stored": stored}
    shown = {"slots read": group.read, "slots written": group.written}
    return {name: ", ".join(f"{first}-{end - 1}" for first, end in spans) or "none" for name, spans in shown.items()}


def runs(numbers: Sequence[int]) -> str:
    """Consecutive numbers as ranges: `0-63, 80`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts) or "none"


def counts(numbers: Sequence[int]) -> str:
    """Repeated numbers with how often: `64 x 2, 1 x 1`."""
    return ", ".join(f"{len(list(group))} blocks x {number}" for number, group in groupby(numbers))
