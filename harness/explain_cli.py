"""`hitparity explain`: why a hit is not longer, by engine and release, and what would lengthen it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.fuzz_cli import parse_options
from harness.terminal import error_terminal, terminal, working
from vocabulary.errors import HitparityError, LawDoesNotCover, UsageError

if TYPE_CHECKING:
    from harness.cases.format import Case
    from harness.explain.counterfactual import World
    from harness.explain.show import Block, Row

MTP: dict[str, dict[str, Any]] = {
    "vllm": {"method": "mtp", "num_speculative_tokens": 1},
    "sglang": {"speculative_algorithm": "EAGLE"},
}
"""What `--mtp` means, by system."""


def explain(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN|TRACE]", help="A run folder, with --request; or a trace file, with --engine."),
    ] = None,
    request: Annotated[str | None, typer.Option(metavar="ID", help="Request of RUN, or line of TRACE.")] = None,
    first: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N requests of TRACE.")] = None,
    trace_format: Annotated[
        str | None, typer.Option("--format", help="Format of TRACE; its first line tells otherwise.")
    ] = None,
    skip_malformed: Annotated[
        bool, typer.Option("--skip-malformed", help="Leave out malformed rows of TRACE.")
    ] = False,
    case: Annotated[str | None, typer.Option(metavar="FILE[:ID]", help="Cases to explain.")] = None,
    lengths: Annotated[
        str | None, typer.Option("--prompt-lengths", metavar="N,...", help="Prompts of these lengths, in this order.")
    ] = None,
    relation: Annotated[
        str, typer.Option(help="prefix: prefixes of one sequence; repeat; fresh; siblings:S: S tokens shared.")
    ] = "prefix",
    times: Annotated[int, typer.Option(min=1, max=100, help="Send the list this often.")] = 1,
    engine: Annotated[
        list[str], typer.Option("--engine", metavar="ENGINE@VERSION", help="Law id; repeat it to compare.")
    ] = [],  # noqa: B006  (typer copies it)
    groups: Annotated[str | None, typer.Option(metavar="GROUP,...", help="Such as full:1536,gdn:1536.")] = None,
    mtp: Annotated[bool, typer.Option("--mtp", help="With an MTP or EAGLE drafter.")] = False,
    page: Annotated[int | None, typer.Option(min=1, help="SGLang's page size.")] = None,
    option: Annotated[
        list[str], typer.Option("--option", metavar="KEY=VALUE", help="Engine option; JSON values.")
    ] = [],  # noqa: B006
    without_levers: Annotated[bool, typer.Option("--no-levers", help="Do not look for what would help.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say why each prompt hits what it hits: picture, binding constraint, and options that would lengthen the hit."""
    from harness.explain import show

    given = [name for name, value in (("RUN", run), ("--case", case), ("--prompt-lengths", lengths)) if value]
    if len(given) != 1:
        raise UsageError(f"give one of RUN, --case and --prompt-lengths, not {' and '.join(given) or 'none'}")
    levers = not without_levers
    if run is not None and run.is_file():
        worlds = _configured(engine, _options(groups, option, page), mtp, "a trace")
        trace = (run, trace_format, first, skip_malformed)
        if request is None:
            _traffic(trace, worlds, levers, as_json)
            return
        blocks = [_line(trace, request, worlds, levers)]
    elif run is not None:
        blocks = [_recorded(run, request, levers)]
    elif case is not None:
        blocks = _cases(case, engine, levers)
    else:
        assert lengths is not None
        blocks = _lengths(lengths, relation, times, engine, _options(groups, option, page), mtp, levers)
    if as_json:
        typer.echo(json.dumps(show.as_json(blocks), indent=1))
        return
    console = terminal()
    for line in show.lines(blocks, console):
        console.print(line, soft_wrap=True)


def _options(groups: str | None, option: list[str], page: int | None) -> dict[str, Any]:
    options = parse_options(option)
    given = (("--groups", "groups", groups), ("--page", "page_size", page))
    if twice := [f"{flag} and --option {key}" for flag, key, value in given if value is not None and key in options]:
        raise UsageError(f"{twice[0]} say the same; keep one of them")
    if groups:
        options["groups"] = groups.split(",")
    if page is not None:
        options["page_size"] = page
    return options


def _lengths(
    text: str, relation: str, times: int, engines: list[str], options: dict[str, Any], mtp: bool, levers: bool
) -> list[Block]:
    from harness.cases.format import Case
    from harness.explain.sequence import from_lengths, parse_lengths

    configured = _configured(engines, options, mtp, "--prompt-lengths")
    requests = from_lengths(parse_lengths(text), relation, times)
    cases = []
    for law_id, given in configured:
        groups = tuple(given.pop("groups", ("full",)))
        cases.append(Case(id=law_id, source="", engine=law_id, groups=groups, options=given, requests=requests))
    mistakes = [mistake for one in cases if (mistake := _mistake(one)) is not None]
    if len(mistakes) == len(cases):  # beside another engine it is told in its row
        raise mistakes[0]
    return _blocks(cases, levers)


def _configured(engines: list[str], options: dict[str, Any], mtp: bool, what: str) -> list[tuple[str, dict[str, Any]]]:
    """Law ids with their options."""
    if not all(engine.strip() for engine in engines):
        raise UsageError("--engine '': name a law of `hitparity list laws`, such as vllm@0.32")
    if not engines:
        raise UsageError(f"{what} needs --engine, such as --engine vllm@0.32 (`hitparity list laws`)")
    found = []
    for law_id in engines:
        system = law_id.partition("@")[0].removesuffix("-ascend")
        if mtp and system not in MTP:
            raise UsageError(f"--mtp: {law_id} has no drafter that touches its lookup; there are {', '.join(MTP)}")
        found.append((law_id, options | (MTP[system] if mtp else {})))
    return found


TraceAsked = tuple[Path, str | None, int | None, bool]


def _traffic(asked: TraceAsked, worlds: list[tuple[str, dict[str, Any]]], levers: bool, as_json: bool) -> None:
    from harness.explain import traffic_show
    from harness.explain.traffic import trace_file, traffic

    path, trace_format, first, skip_malformed = asked
    trace = trace_file(path, trace_format, first, skip_malformed=skip_malformed)
    with working(error_terminal()) as progress:
        found = [traffic(trace, law_id, options, with_changes=levers, progress=progress) for law_id, options in worlds]
    if as_json:
        typer.echo(json.dumps(traffic_show.as_json(found), indent=1))
        return
    console = terminal()
    for line in traffic_show.lines(found, str(path)):
        console.print(line, soft_wrap=True)


def _line(asked: TraceAsked, request: str, worlds: list[tuple[str, dict[str, Any]]], levers: bool) -> Block:
    from harness.explain.show import Block
    from harness.explain.traffic import trace_file, world_at

    path, trace_format, first, skip_malformed = asked
    if not (request.isascii() and request.isdigit()):
        raise UsageError(f"--request {request!r}: a line number of {path} is needed")
    trace = trace_file(path, trace_format, first, skip_malformed=skip_malformed)
    rows = []
    for law_id, options in worlds:
        world, reported = world_at(trace, int(request), law_id, options)
        rows.append(_row(law_id, world, levers, reported))
    length = world.sent[-1].request.prompt_len
    return Block(title=f"{path}, line {request}: {length} tokens", rows=tuple(rows))


def _cases(text: str, engines: list[str], levers: bool) -> list[Block]:
    from harness.explain.sequence import find_case

    blocks = []
    for placed in find_case(text):
        asked = [placed.case, *(placed.case.model_copy(update={"engine": law_id}) for law_id in engines)]
        blocks += _blocks(asked, levers, title=placed.case.id)
    return blocks


def _mistake(case: Case) -> HitparityError | None:
    """What is wrong with an engine, its options or their values, before anything is sent."""
    from reference_engine.laws.registry import make_law

    try:
        make_law(case.engine, {"groups": list(case.groups), **case.options})
    except (LawDoesNotCover, UsageError) as error:
        return error
    return None


def _blocks(cases: list[Case], levers: bool, title: str = "") -> list[Block]:
    from harness.explain.show import Block

    worlds = [_world(case) for case in cases]
    blocks = []
    for index, request in enumerate(cases[0].requests):
        head = f"{title}, request" if title else "request"
        stated = "" if request.hit_len is None else f", stated hit {request.hit_len}"
        rows = [_row(case.engine, world.until(index), levers) for case, world in zip(cases, worlds, strict=True)]
        prefix = next((row.explanation.lcp_len for row in rows if row.explanation), None)
        known = "" if prefix is None else f", {prefix} of them computed before"
        text = f"{head} {index}: {len(request.prompt)} tokens{known}{stated}"
        blocks.append(Block(title=text, rows=tuple(rows)))
    return blocks


def _world(case: Case) -> World:
    from harness.explain.counterfactual import Sent, World

    sent = [Sent(case.token_request(i), request.output_ids) for i, request in enumerate(case.requests)]
    return World(law_id=case.engine, options=case.law_options, sent=tuple(sent))


def _row(label: str, world: World, levers: bool, observed: int | None = None) -> Row:
    from harness.explain.explanation import explain as explain_last
    from harness.explain.show import Row

    options = dict(world.options)
    try:
        explanation = explain_last(world, with_levers=levers)
    except (LawDoesNotCover, UsageError) as why:
        return Row(label=label, options=options, explanation=None, refused=str(why))
    return Row(label=label, options=options, explanation=explanation, observed_hit_len=observed)


def _recorded(folder: Path, request_id: str | None, levers: bool) -> Block:
    from harness.explain.recorded import find_record, world_of
    from harness.explain.show import Block, Row

    if request_id is None:
        raise UsageError(f"{folder}: which request? --request ID; ids are in its requests.jsonl files")
    run, cell, record = find_record(folder, request_id)
    title = (
        f"{record.request_id} ({record.label}): {record.prompt_len} tokens, {record.lcp_len} of them computed before"
    )
    try:
        row = _row(record.engine_label, world_of(run, cell, record), levers, record.hit_len)
    except LawDoesNotCover as why:
        row = Row(label=record.engine_label, options={}, explanation=None, refused=str(why))
    return Block(title=title, rows=(row,))
