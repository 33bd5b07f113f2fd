"""`hitparity fuzz`: random sequences against a law and an engine together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.terminal import terminal
from vocabulary.engine import Fidelity
from vocabulary.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from harness.fuzz.campaign import Tally
    from harness.fuzz.configurations import Configuration

ALL = "all"


def fuzz(
    engine: Annotated[
        str, typer.Argument(metavar="ENGINE@VERSION", help="A law id, or its beginning (vllm); all: every one.")
    ],
    configuration: Annotated[
        list[str], typer.Option("--configuration", metavar="NAME", help="Only these named configurations.")
    ] = [],  # noqa: B006  (typer copies it)
    groups: Annotated[
        str | None, typer.Option(metavar="GROUP,...", help="Layer groups in place of the named configurations.")
    ] = None,
    option: Annotated[
        list[str], typer.Option("--option", metavar="KEY=VALUE", help="Engine option, with --groups; JSON values.")
    ] = [],  # noqa: B006
    requests: Annotated[int, typer.Option(min=1, help="Requests per configuration.")] = 1000,
    served_requests: Annotated[
        int | None, typer.Option(min=1, help="The same where a model is served. Default: a tenth.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    against: Annotated[Fidelity | None, typer.Option(help="lookup or served. Default: the configuration's.")] = None,
    longest: Annotated[int, typer.Option(min=8, help="Longest prompt with output, with --groups.")] = 400,
    write: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the shrunk sequences, as case files.")] = Path(
        "results/fuzz"
    ),
    tallies: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the results; configurations of other engines stay."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the configurations and run nothing.")] = False,
) -> None:
    """Random request sequences against law and engine together; a difference is shrunk and written as a case file."""
    from harness.fuzz.campaign import campaign, open_subject
    from harness.fuzz.page import load, merged, result_of, save

    console = terminal()
    chosen = _chosen(engine, configuration, groups, option, longest, against)
    if listed:
        for each in chosen:
            console.print(escape(f"{each.engine}  {each.name}: {', '.join(each.groups)} {dict(each.options)}"))
        return
    results = load(tallies) if tallies is not None and tallies.is_file() else []
    done: list[Tally] = []
    subject, opened = None, None
    try:
        for each in chosen:
            if subject is None or opened != each.against:
                if subject is not None:
                    subject.close()
                subject, opened = open_subject(each.against), each.against
            served = each.against is Fidelity.SERVED
            count = (served_requests or max(requests // 10, 1)) if served else requests
            tally = campaign(each, count, seed, subject)
            done.append(tally)
            _print(tally, console, write)
            if tallies is not None:
                results = merged(results, result_of(tally))
                save(tallies, results)
    finally:
        if subject is not None:
            subject.close()
    console.print(_table(done))
    raise typer.Exit(_code(done))


def _chosen(
    engine: str, names: list[str], groups: str | None, option: list[str], longest: int, against: Fidelity | None
) -> list[Configuration]:
    import dataclasses
    import difflib

    from harness.fuzz.configurations import Configuration, configurations

    if groups is not None:
        options = parse_options(option)
        name = " ".join([groups, *option])
        made = Configuration(
            name=name, engine=engine, groups=tuple(groups.split(",")), options=options, longest=longest,
            against=against or (Fidelity.SERVED if engine.startswith("llama") else Fidelity.LOOKUP),
            longest_output=max(longest // 6, 2), namespaces=not engine.startswith("llama"),
        )  # fmt: skip
        return [made]
    if option:
        raise UsageError("--option goes with --groups; the named configurations have their own options")
    known = configurations()
    found = [each for each in known if engine in (ALL, each.engine) or each.engine.split("@")[0] == engine]
    if not found:
        near = difflib.get_close_matches(engine, {each.engine for each in known}, n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(dict.fromkeys(e.engine for e in known))}"
        )
        raise UsageError(f"no named configuration for {engine!r}; {hint} (or give --groups)")
    if names:
        wrong = [name for name in names if name not in {each.name for each in found}]
        if wrong:
            there = "; ".join(dict.fromkeys(each.name for each in found))
            raise UsageError(f"no configuration {wrong[0]!r} for {engine}; there are: {there}")
        found = [each for each in found if each.name in names]
    return [dataclasses.replace(each, against=against or each.against) for each in found]


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE each, the value as JSON where it is JSON and as text otherwise; UsageError for a key given twice."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"option {text!r}: write KEY=VALUE, such as max_num_batched_tokens=512")
        if key in options:
            raise UsageError(f"option {key!r} is given twice: {json.dumps(options[key])} and {value}; keep one of them")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def _print(tally: Tally, console: Any, folder: Path) -> None:
    from harness.cases.reading import write_cases
    from harness.cases.show import ledgers

    for found in tally.found:
        mismatch = found.mismatch
        console.print(
            Text(f"{found.case.id}: request {mismatch.index}: {'; '.join(mismatch.differences)}", style="bold")
        )
        start = mismatch.engine.hit_len if mismatch.engine.position_start is None else mismatch.engine.position_start
        law = mismatch.expectation.ledger
        seen = law.observed(min(start or 0, law.prompt_len))
        for line in ledgers([("law", law), (tally.against.value, seen)], console):
            console.print(line, soft_wrap=True)
        tokens = sum(len(request.prompt) for request in found.case.requests)
        name = "".join(c if c.isalnum() or c in ".@-" else "-" for c in f"{tally.engine}-{tally.configuration}")
        path = folder / f"{name}-seed{tally.seed}-{found.sequence}.jsonl"
        write_cases(path, [found.case])
        console.print(
            f"  shrunk from {found.requests_before} requests, {found.tokens_before} tokens to "
            f"{len(found.case.requests)}, {tokens}; replay: hitparity check {escape(str(path))}",
            soft_wrap=True,
        )
    for reason, count in tally.not_covered.items():
        console.print(escape(f"{tally.engine} {tally.configuration}: not compared, {count} x {reason}"), soft_wrap=True)
    for failure in tally.failures:
        console.print(escape(f"{tally.engine} {tally.configuration}: engine failed: {failure}"), soft_wrap=True)


def _table(tallies: list[Tally]) -> Table:
    table = Table("engine", "configuration", "against", "seed", "requests", "with a hit", "differ", "remark", "s")
    for tally in tallies:
        remarks = []
        if tally.not_covered:
            remarks.append(f"{sum(tally.not_covered.values())} sequences refused")
        if tally.failures:
            remarks.append(f"{len(tally.failures)} engine failures")
        if tally.unfit:
            remarks.append(f"{tally.unfit} sequences did not fit the vocabulary")
        table.add_row(
            escape(tally.engine), escape(tally.configuration), tally.against.value, str(tally.seed),
            f"{tally.requests:,}", f"{tally.hits:,}", f"{tally.differing:,}", "; ".join(remarks),
            f"{tally.seconds:.0f}",
        )  # fmt: skip
    return table


def _code(tallies: list[Tally]) -> ExitCode:
    if any(tally.differing or tally.failures for tally in tallies):
        return ExitCode.FINDINGS
    complete = all(tally.requests and not tally.not_covered for tally in tallies)
    return ExitCode.CLEAN if complete else ExitCode.INCONCLUSIVE
