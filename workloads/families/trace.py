"""Trace: recorded traffic, scaled down until small engines can serve it, in the order it arrived.

    row 1   [ block a ][ block b ][ c ]        IDs drawn anew: shared blocks are equal,
    row 2   [ block a ][ block d ]             other ones differ in their first token

Separates: nothing by construction; it shows what the rules cost on real traffic, and what evicts what. With `open_loop`
requests are sent at their recorded times whether or not earlier ones have been answered.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from pydantic import Field

from vocabulary.errors import UsageError
from workloads.families.base import Parameters
from workloads.lengths import Length
from workloads.sequence import Send
from workloads.source import TokenSource
from workloads.traces.base import TraceRequest
from workloads.traces.registry import open_trace
from workloads.traces.token_form import TokenForm


class Trace(Parameters):
    """`trace` is a file, relative to the experiment file; docs/traces.md has the formats."""

    trace: str
    format: str | None = None
    """Of the file; None: its first line tells."""
    block_len: Length | None = None
    """Tokens in its blocks; None: what its format usually has."""
    first: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Rows taken from the beginning."""
    divide: Annotated[int, Field(ge=1, le=4096)] = 1
    """Lengths and blocks are divided by this, a divisor of the block; recorded token IDs are drawn anew then."""
    longest: Length | None = None
    """Leave out prompts that are longer, after the division."""
    redraw: bool = False
    """Draw IDs anew although the trace has some, for a model with another vocabulary; sharing is kept by the block."""
    answers: bool = False
    """Generate as many tokens as were recorded (divided), at least one, instead of `max_tokens`."""
    namespaces: bool = True
    """Send the trace's namespaces as cache salts; else everything shares."""
    skip_malformed: bool = False
    open_loop: bool = False
    """Send at the recorded times; served engines over HTTP only."""
    speed: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Times are divided by this."""


def trace(parameters: Trace, source: TokenSource) -> tuple[Send, ...]:
    """One send per row, in file order; by time where they are sent at their times."""
    reader = open_trace(
        source.path(parameters.trace),
        parameters.format,
        block_len=parameters.block_len,
        skip_malformed=parameters.skip_malformed,
    )
    taken = [request.scaled(parameters.divide) for request in islice(reader, parameters.first)]
    if parameters.longest is not None:
        taken = [request for request in taken if request.input_len <= parameters.longest]
    begin_ns = _first_arrival(taken, parameters) if parameters.open_loop else 0
    form = TokenForm.of(source.drawable, source.seed)
    sends = []
    for request in taken:
        at_ns = None
        if parameters.open_loop:
            at_ns = round(((request.arrival_ns or 0) - begin_ns) / parameters.speed)
        sends.append(
            Send(
                label=f"line {request.line}",
                parts=(tuple(form.ids(request, redraw=parameters.redraw).tolist()),),
                max_tokens=max(1, request.output_len) if parameters.answers else parameters.max_tokens,
                namespace=request.namespace if parameters.namespaces else None,
                at_ns=at_ns,
                with_previous=at_ns is not None,
            )
        )
    return tuple(sorted(sends, key=lambda send: send.at_ns or 0))


def _first_arrival(requests: list[TraceRequest], parameters: Trace) -> int:
    times = [request.arrival_ns for request in requests if request.arrival_ns is not None]
    if len(times) < len(requests):
        raise UsageError(
            f"{parameters.trace}: not every row has a time, so there is none to send it at; leave open_loop out"
        )
    return min(times, default=0)
