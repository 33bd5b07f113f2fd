"""Tables of a run for the terminal; every text is a `rich.text.Text`, so no name is read as markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.records import CellManifest, RequestRecord, Role
from harness.savings import Savings, savings
from harness.summary import EngineSummary, engine_summaries, invalid_cells, remarks, unfinished_cells, verdict
from harness.views import SendView, WorkloadView, folded, telling_rows, workload_views
from harness.wording import (
    UNKNOWN,
    count,
    is_marked,
    is_unusable,
    ledger_items,
    milliseconds,
    percent,
    plain,
    signed,
    span,
)
from vocabulary.engine import Fidelity

MIN_WIDTH = 80
"""Characters; a narrower terminal wraps or scrolls what is printed at this width."""
MIN_NAME = 11
"""Characters of a column of names; longer ones fold."""
MATRIX_ROWS = 60
"""Workloads with more requests are shown as sends x engines."""
SHOWN_ROWS = 200
"""Of a matrix."""
SHOWN_FINDINGS = 200
SAVINGS_ROWS = 12
MATRIX_WIDTH = 80
"""Characters for the engine columns of one matrix, so that it fits into 100."""
PREDICTED, EMULATED, MARK = "~", "^", "!"


def widened(console: Console, tables: Sequence[RenderableType]) -> Console:
    """The same console, wide enough for every number and name of the tables: rich cuts or drops what does not fit."""
    unlimited = console.options.update(max_width=10_000)
    needed = (Measurement.get(console, unlimited, table).minimum for table in tables)
    console.width = max(console.width, MIN_WIDTH, *needed)
    return console


def run_tables(
    cells: Sequence[CellManifest],
    requests: Sequence[RequestRecord],
    *,
    full: bool = False,
    planned: Sequence[str] = (),
) -> list[RenderableType]:
    """One table per workload and model, then the summary per engine configuration, then what is wrong.

    `planned` holds the IDs of all cells of the run, so that those that never ran are told too. Print on
    a console `widened` for them.

    `full` shows every request, sentinels and controls included; otherwise long workloads are shown as a
    matrix of hits. Made for 100 columns; colour repeats what marks say and is never needed.
    """
    views = workload_views(requests, roles=frozenset(Role) if full else frozenset({Role.PROBE}))
    shown: list[RenderableType] = []
    for view in views:
        shown += [_requests(view)] if full or len(view.requests) <= MATRIX_ROWS else _matrices(view)
    summaries = engine_summaries(cells, requests)
    if summaries:
        shown.append(_summary(summaries))
    if saved := savings(requests):
        shown.append(_savings(saved))
    shown += [Text(gap) for s in summaries for gap in s.gaps]
    troubled = unfinished_cells(cells, requests, planned) + invalid_cells(cells)
    shown += [Text(f"{MARK} {sentence}", style="red") for sentence in troubled]
    found = remarks(cells, requests)
    listed = found if full else found[:SHOWN_FINDINGS]
    shown += [Text(f"{MARK} {remark}", style="yellow") for remark in listed]
    if len(listed) < len(found):
        shown.append(Text(f"{MARK} {len(found) - len(listed)} more findings; --full shows all", style="yellow"))
    shown.append(Text(verdict(cells, requests, planned), style="bold"))
    return shown


def _requests(view: WorkloadView) -> RenderableType:
    """One request a row, the engines of one send together."""
    table = _table(view.title)
    table.add_column("send", overflow="fold", min_width=MIN_NAME, max_width=16)
    _add_numbers(table, "L", "P")
    table.add_column("engine", overflow="fold", min_width=MIN_NAME, max_width=24)
    _add_numbers(table, "hit", "start", "tail", "TTFT")
    table.add_column("ledger", ratio=1, min_width=20)
    for send in view.sends:
        for number, request in enumerate(send.requests):
            first = number == 0
            repeated = not first and request.prompt_len == send.requests[0].prompt_len
            table.add_row(
                Text(send.name if first else ""),
                Text("" if repeated else str(request.prompt_len)),
                Text("" if repeated and request.lcp_len == send.requests[0].lcp_len else str(request.lcp_len)),
                _engine(request),
                Text(count(request.hit_len)),
                Text(count(request.position_start)),
                Text(count(request.tail_len)),
                Text(milliseconds(request.ttft_ns)),
                _LedgerCell(request),
                style="dim" if request.fidelity is Fidelity.LAW else "",
                end_section=number == len(send.requests) - 1,
            )
    return Group(table, _legend(view, "L prompt, P longest common prefix (tokens); TTFT in ms"), Text())


def _matrices(view: WorkloadView) -> list[RenderableType]:
    """Hits of every send, as many configurations beside each other as fit."""
    all_rows, left_out = folded(view)
    rows = telling_rows(all_rows, SHOWN_ROWS)
    by_label = {r.engine_label: r for r in view.requests}
    tables: list[RenderableType] = []
    for labels in _packed(by_label[label] for label in view.labels):
        table = _table(f"{view.title}: hits" + (f" ({len(tables) + 1})" if tables else ""))
        table.add_column("send", no_wrap=True)
        _add_numbers(table, "L")
        for label in labels:
            table.add_column(
                _engine(by_label[label]), justify="right", overflow="fold", max_width=_width(by_label[label])
            )
        for name, send in rows:
            answers = {r.engine_label: r for r in send.requests}
            if any(label in answers for label in labels):
                cells = [_hit(answers.get(label)) for label in labels]
                table.add_row(Text(name), Text(_lengths(send)), *cells)
        tables.append(table)
    start = "hit in tokens, L prompt"
    if left_out:
        start += f"; {left_out} cold sends that nobody hit are left out"
    if len(rows) < len(all_rows):
        start += f"; {len(rows)} of {len(all_rows)} rows, those that differ first; --full shows all"
    return [Group(*tables, _legend(view, start), Text())]


def _summary(summaries: Sequence[EngineSummary]) -> RenderableType:
    several = len({summary.model for summary in summaries}) > 1
    table = _table("Summary")
    if several:
        _add_names(table, "model", [s.model for s in summaries], 12)
    table.add_column("engine", overflow="fold", min_width=16, max_width=24)
    _add_numbers(table, "re-\nquests", "prompt\ntokens", "reused")
    table.add_column("share", justify="right", no_wrap=True, min_width=len("100.0 %"))
    _add_numbers(table, "unex-\nplained", "cold\nTTFT", "warm\nTTFT")
    found = [", ".join(f"{n} {kind.value}" for kind, n in sorted(s.findings.items())) or "none" for s in summaries]
    _add_names(table, "findings", found, MIN_NAME)
    _add_names(table, "law", [s.law for s in summaries], MIN_NAME)
    for s, kinds in zip(summaries, found, strict=True):
        row = [
            *([s.model] if several else []),
            s.label,
            str(s.requests),
            str(s.prompt_tokens),
            count(s.reused),
            percent(s.share),
            count(s.unexplained),
            milliseconds(s.cold_ns),
            milliseconds(s.warm_ns),
            kinds,
            s.law,
        ]
        table.add_row(*(Text(cell) for cell in row), style="yellow" if s.findings else "")
    legend = Text("tokens; TTFT: median in ms of requests with hit 0 (cold) and hit > 0 (warm)", style="italic")
    return Group(table, legend, Text())


def _savings(rows: Sequence[Savings]) -> RenderableType:
    """The widest gaps between hit and time first; a ladder's short prompts say little."""
    chosen = sorted(rows, key=lambda row: -row.prompt_len)[:SAVINGS_ROWS]
    table = _table("Hit is not savings")
    table.add_column("engine", overflow="fold", min_width=MIN_NAME, max_width=24)
    table.add_column("workload", overflow="fold", min_width=MIN_NAME, max_width=16)
    _add_numbers(table, "L", "hit", "com-\nputed")
    table.add_column("of it avoidable", overflow="fold", min_width=12, max_width=24)
    _add_numbers(table, "hit\nshare", "prefill\nshare", "TTFT\nsaved", "request\nsaved", "cold/\nwarm")
    for row in sorted(chosen, key=lambda row: (row.workload, row.prompt_len, row.engine_label)):
        lost = ", ".join(f"{cause.value} {tokens}" for cause, tokens in row.lost) or "-"
        cells = [plain(row.engine_label), plain(row.workload), str(row.prompt_len), str(row.hit_len), str(row.tail_len)]
        shares = [percent(row.hit_share), percent(row.prefill_share), signed(row.ttft_saved), signed(row.request_saved)]
        table.add_row(*(Text(cell) for cell in [*cells, lost, *shares, f"{row.cold}/{row.warm}"]))
    more = f"; the {len(chosen)} longest prompts of {len(rows)}" if len(chosen) < len(rows) else ""
    legend = f"saved: share of the cold median; prefill share: of the cold request; cold/warm: requests timed{more}"
    return Group(table, Text(legend, style="italic"), Text())


@dataclass(frozen=True, slots=True)
class _LedgerCell:
    """A ledger that wraps between its parts, with the kinds of the request's findings below."""

    request: RequestRecord

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        items = ledger_items(self.request)
        return Measurement(max(map(len, items)), len(" | ".join(items))).clamp(max_width=options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        line = ""
        for item in ledger_items(self.request):
            if line and len(line) + len(item) + 5 > options.max_width:
                yield Text(f"{line} |")
                line = ""
            line += f" | {item}" if line else item
        yield Text(line)
        if is_marked(self.request):
            kinds = sorted({finding.kind.value for finding in self.request.findings})
            yield Text(f"{MARK} {', '.join(kinds) or 'not what the law says'}", style="yellow")


def _table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )


def _add_numbers(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def _add_names(table: Table, heading: str, names: Sequence[str], most: int) -> None:
    """A column of fixed width: rich narrows others down to nothing."""
    table.add_column(heading, overflow="fold", width=min(max(map(len, [heading, *names])), most))


def _engine(request: RequestRecord) -> Text:
    if request.fidelity is Fidelity.LAW:
        return Text(PREDICTED + plain(request.engine_label))
    return Text((EMULATED if request.emulated else "") + plain(request.engine_label))


def _hit(request: RequestRecord | None) -> Text:
    if request is None:
        return Text("")
    marked = is_marked(request)
    return Text(count(request.hit_len) + (MARK if marked else ""), style="yellow" if marked else "")


def _width(request: RequestRecord) -> int:
    """Of a matrix column: the longest word of its heading, within reason."""
    return min(max(len(word) for word in [*_engine(request).plain.split(), "1024!"]), 18)


def _packed(requests: Iterable[RequestRecord]) -> list[list[str]]:
    """Labels of the configurations that fit beside each other."""
    packed: list[list[str]] = []
    room = 0
    for request in requests:
        needed = _width(request) + 2
        if not packed or needed > room:
            packed.append([])
            room = MATRIX_WIDTH
        packed[-1].append(request.engine_label)
        room -= needed
    return packed


def _lengths(send: SendView) -> str:
    return span([r.prompt_len for r in send.requests])


def _legend(view: WorkloadView, start: str) -> Text:
    """Only the marks that occur."""
    requests = view.requests
    parts = [start]
    if any(r.repetition for r in requests):
        parts.append("(2) second send of a prompt")
    if any(r.fidelity is Fidelity.LAW for r in requests):
        parts.append(f"{PREDICTED} predicted by a law, no engine ran")
    if any(r.emulated for r in requests):
        parts.append(f"{EMULATED} the reference engine under another system's law")
    if any(is_marked(r) for r in requests):
        parts.append(f"{MARK} finding, see below")
    if any(r.hit_len is None or not (r.ledger or is_unusable(r)) for r in requests):
        parts.append(f"{UNKNOWN} the engine did not say")
    if not all(send.same_prompt for send in view.sends):
        parts.append("engines generated different tokens, so later prompts differ")
    return Text("; ".join(parts), style="italic")
