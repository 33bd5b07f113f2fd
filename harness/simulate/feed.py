"""A trace's requests in the form a law reads: chained blocks, or tokens drawn for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from harness.simulate.numbering import Numbering, Numbers
from harness.simulate.trace_file import TraceFile
from reference_engine.laws.parts.chained import chained_request
from vocabulary.engine import TokenRequest
from workloads.traces.base import TraceReader, TraceRequest
from workloads.traces.registry import open_trace
from workloads.traces.token_form import TokenForm

BATCH = 1024
VOCAB = 1 << 22
"""Token IDs of prompts lie below; a prompt prefix may have as many different continuations."""


@dataclass(slots=True)
class Fed:
    """One request for a law; not frozen, which would make each three times as expensive."""

    request: TokenRequest
    outputs: tuple[int, ...]
    """What it generates: IDs that are in no prompt, the first in no other answer."""
    line: int
    arrival_ns: int | None


def reader_of(trace: TraceFile) -> TraceReader:
    """The trace's reader. Raises UsageError where the file or its format cannot be read."""
    return open_trace(
        trace.path,
        trace.format,
        block_len=trace.block_len,
        skip_malformed=trace.skip_malformed,
        limit=trace.limit,
    )


def numbered(reader: TraceReader, divide: int) -> Iterator[tuple[TraceRequest, Numbers]]:
    """Requests with their block numbers, batch by batch."""
    numbering, rows = Numbering(), iter(reader)
    while batch := list(islice(rows, BATCH)):
        numbers = numbering.numbers(np.concatenate([request.blocks for request in batch]))
        end = 0
        for request in batch:
            start, end = end, end + len(request.blocks)
            yield request.scaled(divide), numbers[start:end]


def feed(reader: TraceReader, *, chained: bool, outputs: bool, divide: int = 1) -> Iterator[Fed]:
    """Requests in file order. `outputs`: answers have the trace's lengths; else one token."""
    if not chained:
        yield from _tokens(reader, outputs, divide)
        return
    for number, (request, blocks) in enumerate(numbered(reader, divide), start=1):
        count = max(request.output_len, 1) if outputs else 1
        made = chained_request(
            str(request.line),
            blocks,
            request.block_len,
            request.input_len,
            number,
            count,
            namespace=request.namespace,
            lora=request.lora,
        )
        yield Fed(made, _output(number, count), request.line, request.arrival_ns)


def _tokens(reader: TraceReader, outputs: bool, divide: int) -> Iterator[Fed]:
    form = TokenForm(VOCAB)
    for number, request in enumerate(reader, start=1):
        scaled = request.scaled(divide)
        count = max(scaled.output_len, 1) if outputs else 1
        made = TokenRequest(
            request_id=str(request.line),
            ids=tuple(form.ids(scaled).tolist()),
            max_tokens=count,
            namespace=request.namespace,
            lora=request.lora,
        )
        yield Fed(made, _output(number, count), request.line, request.arrival_ns)


def _output(number: int, count: int) -> tuple[int, ...]:
    return (VOCAB + number,) * count
