"""`hitparity generate`: synthetic traffic as a trace file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vocabulary.errors import UsageError


def generate(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Trace to write (JSON lines).")],
    format_name: Annotated[
        str, typer.Option("--format", help="mooncake, bailian, agents, counters or hitparity (docs/traces.md).")
    ] = "mooncake",
    requests: Annotated[int, typer.Option(min=1, help="How many.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal files.")] = 0,
    mean_len: Annotated[
        int | None, typer.Option(min=8, metavar="TOKENS", help="Scale all lengths to about this mean prompt.")
    ] = None,
    block: Annotated[int | None, typer.Option(min=1, help="Tokens in a block; the format's own where absent.")] = None,
    systems: Annotated[int, typer.Option(min=1, help="System prompts that sessions share.")] = 8,
    documents: Annotated[int, typer.Option(min=1, help="Documents that sessions share.")] = 200,
    document_share: Annotated[float, typer.Option(min=0, max=1, help="Sessions that read a document.")] = 0.4,
    turns: Annotated[float, typer.Option(min=1, help="Mean requests of a session.")] = 4.0,
    tool_share: Annotated[float, typer.Option(min=0, max=1, help="Turns that are a tool's result.")] = 0.3,
    sessions_per_s: Annotated[float, typer.Option(min=0.001, help="How often a session begins.")] = 1.0,
) -> None:
    """Write synthetic traffic: sessions over shared system prompts and documents, with turns and tool calls."""
    from workloads.traces.generate import Traffic
    from workloads.traces.generate import generate as generated
    from workloads.traces.registry import READERS
    from workloads.traces.write import write_trace

    if format_name not in READERS:
        raise UsageError(f"--format {format_name!r}: there are {', '.join(READERS)}")
    traffic = Traffic(
        requests=requests,
        seed=seed,
        mean_len=mean_len,
        systems=systems,
        documents=documents,
        document_share=document_share,
        turns=turns,
        tool_share=tool_share,
        sessions_per_s=sessions_per_s,
    )
    block_len = block or READERS[format_name].usual_block_len
    count, tokens = write_trace(generated(traffic), out, format_name, block_len)
    typer.echo(f"{out}: {count} requests, {tokens} prompt tokens")
