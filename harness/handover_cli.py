"""`hitparity handover`: what lies between "found in the cache" and the first computed token."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.fuzz_cli import parse_options
from harness.terminal import terminal
from vocabulary.errors import EngineUnavailable, HitparityError, UsageError

if TYPE_CHECKING:
    from harness.cases.format import Case
    from harness.handover_observe import Live
    from harness.handover_show import Column

FIGURE_TYPES = (".svg", ".png")


def handover(
    engines: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENGINE[@VERSION]]...", help="Default: all. A version names the law; reference@LAW."),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option("--prompt-lengths", metavar="N,...", help="Prompts sent in order; numbers are the last's."),
    ] = None,
    relation: Annotated[
        str, typer.Option(help="prefix: prefixes of one sequence; repeat; fresh; siblings:S: S tokens shared.")
    ] = "prefix",
    groups: Annotated[str | None, typer.Option(metavar="GROUP,...", help="Such as full:1536,gdn:1536.")] = None,
    option: Annotated[
        list[str], typer.Option("--option", metavar="KEY=VALUE", help="Option of the laws; JSON values.")
    ] = [],  # noqa: B006  (typer copies it)
    external_hit: Annotated[
        int | None, typer.Option(min=0, help="DeepInfer: tokens an external store injects for the last prompt.")
    ] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Start the engines that are installed and read their facts back.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="One Markdown table.")] = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the life of the last prompt in the reference engine (.svg or .png)."),
    ] = None,
) -> None:
    """Answer the hand-over questions engine by engine; fill in a prompt's numbers; show the reference engine's own."""
    from harness import handover_show
    from harness.handover import SOURCES

    options = parse_options(option) | ({"groups": groups.split(",")} if groups else {})
    if lengths is None and (options or external_hit is not None):
        raise UsageError("--groups, --option and --external-hit change a prompt's numbers; give --prompt-lengths too")
    lives = [name for name in engines or () if lengths and name.partition("@")[0] == "reference"]
    if figure is not None and (len(lives) != 1 or figure.suffix not in FIGURE_TYPES):
        raise UsageError(
            f"--figure {figure}: a file name that ends in {' or '.join(FIGURE_TYPES)}, with one `reference` or "
            f"`reference@LAW` among the engines and --prompt-lengths, is needed"
        )
    case = None if lengths is None else _case(lengths, relation)
    asked = engines or list(SOURCES)
    single = len(asked) == 1
    columns = [_column(name, case, options, external_hit, observe, strict=single) for name in asked]
    if markdown:
        typer.echo(handover_show.markdown(columns), nl=False)
        return
    console = terminal()
    for shown in handover_show.tables(columns):
        console.print(shown)
    for name in lives:
        assert case is not None
        live = _live(case, name.partition("@")[2], options)
        console.print(handover_show.live_table(live))
        if figure is not None:
            from harness.figures.request_life import request_life

            request_life(live).savefig(figure)
            console.print(f"drawn: {figure}", soft_wrap=True, markup=False)


def _case(lengths: str, relation: str) -> Case:
    from harness.cases.format import Case
    from harness.explain.sequence import from_lengths, parse_lengths

    requests = from_lengths(parse_lengths(lengths), relation, 1)
    return Case(id="handover", source="the command line", engine="reference", requests=requests)


def _column(
    name: str, case: Case | None, options: dict[str, Any], external_hit: int | None, observe: bool, *, strict: bool
) -> Column:
    """One system; what its law or engine cannot do is a remark, or the error itself when it alone was asked for."""
    from dataclasses import replace

    from harness.handover import law_of, load, serve
    from harness.handover_observe import built, observed
    from harness.handover_show import Column
    from reference_engine.laws.deepinfer.law import DeepInfer
    from reference_engine.laws.registry import LAWS

    system, _, version = name.partition("@")
    loaded, numbers, details, remarks = load(system), None, None, list[str]()
    law_id = (version if system == "reference" else name) if version else None
    if law_id is not None and law_id not in LAWS:
        raise UsageError(f"{name}: there is no law {law_id!r}; see `hitparity list laws`")
    if case is not None:
        requests = [replace(case.token_request(index), request_id=str(index)) for index in range(len(case.requests))]
        if system == "deepinfer":
            requests[-1] = replace(requests[-1], external_hit=external_hit)
        try:
            law = law_of(loaded, law_id, options)
            if isinstance(law, DeepInfer) and law.ring is not None:
                details = law.hand_over(requests[-1])
            numbers = serve(law, requests, [request.output_ids for request in case.requests])
        except HitparityError as error:
            if strict:
                raise
            remarks.append(str(error))
    shown = built(system)
    if observe:
        try:
            shown |= observed(system, case)
        except (EngineUnavailable, UsageError) as error:
            if strict:
                raise
            remarks.append(str(error))
    return Column(system=loaded, numbers=numbers, remarks=tuple(remarks), observed=shown, details=details)


def _live(case: Case, law_id: str, options: dict[str, Any]) -> Live:
    from harness.handover import load
    from harness.handover_observe import live

    if importlib.util.find_spec("torch") is None:
        raise EngineUnavailable("reference: torch is not installed; pip install 'hitparity[reference]'")
    return live(case, law_id or load("reference").law, options)
