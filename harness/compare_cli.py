"""`hitparity compare`: is the candidate as good as the base? The exit code is the verdict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.compare.likeness import Subject
from harness.compare.quantity import Quantity
from harness.terminal import terminal
from vocabulary.errors import UsageError

_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="RUN, or RUN:label for one engine configuration.")],
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="The same, of this or another run.")],
    about: Annotated[
        list[Subject], typer.Option(help="What the comparison is about, and so may differ. May be given again.")
    ] = [],  # noqa: B006  (typer copies it)
    max_slowdown: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Allowed increase of a time, as 5%. Default: times decide nothing."),
    ] = None,
    time: Annotated[
        list[Quantity], typer.Option(help="Which times are compared. May be given again. Default: ttft.")
    ] = [],  # noqa: B006  (typer copies it)
    discard: Annotated[int, typer.Option(min=0, metavar="N", help="Leave the first N pairs of a cell untimed.")] = 0,
    markdown: Annotated[Path | None, typer.Option(metavar="F", help="The comparison as Markdown.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="F", help="The comparison as JSON.")] = None,
) -> None:
    """Compare two runs of one engine, or two engine configurations, request by request.

    Hits, starts and ledgers must be the same to the token. Exit codes: 0 pass, 1 fail, 2 the sides are unlike,
    3 inconclusive.
    """
    from harness.brief import append_step_summary
    from harness.compare.comparison import compare as compare_sides
    from harness.compare.show import comparison_json, comparison_markdown, comparison_tables
    from harness.compare.sides import read_side
    from harness.table import widened

    allowed = None if max_slowdown is None else _share(max_slowdown)
    seen = compare_sides(
        read_side(base),
        read_side(candidate),
        about=frozenset(about),
        max_slowdown=allowed,
        discard=discard,
        times=tuple(dict.fromkeys(time)) or (Quantity.TTFT,),
    )
    text = comparison_markdown(seen)
    for path, content in ((markdown, text), (json, comparison_json(seen))):
        if path is not None:
            _write(path, content)
    append_step_summary(text)
    tables = comparison_tables(seen)
    console = widened(terminal(), tables)
    for table in tables:
        console.print(table)
    for path in (markdown, json):
        if path is not None:
            console.print(f"report:  {escape(str(path))}", soft_wrap=True)
    raise typer.Exit(seen.exit_code)


def _share(text: str) -> float:
    if not (match := _PERCENT.fullmatch(text.strip())):
        raise UsageError(f"--max-slowdown {text!r}: give a percentage such as 5%")
    return float(match[1]) / 100


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; choose another file") from None
