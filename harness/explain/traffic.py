"""A whole trace by one law: where its tokens went, the requests behind each cause, and what one option changes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.explain.counterfactual import UNUSED, Sent, World
from harness.simulate.feed import feed, reader_of
from harness.simulate.gains import variants
from harness.simulate.job import Job
from harness.simulate.trace_file import TraceFile
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover, UsageError
from vocabulary.ledger import Cause
from workloads.traces.base import TraceReader
from workloads.traces.own import Own
from workloads.traces.token_form import TokenForm

DRAWN_BELOW = 1 << 22
"""IDs drawn for traces that have none lie below."""
UNNAMED_SOURCE = "openai"
"""A trace of API bodies does not say which engine answered."""
STEP = 1024
"""Requests between two words about progress."""
Progress = Callable[[str], None]
MOST_BEHIND = 5
"""Requests named for each cause, and where engine and law disagree."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A request behind a cause."""

    tokens: int
    """Of it, booked to the cause."""
    line: int
    """In the trace."""
    prompt_len: int
    hit_len: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """What the engine reported when the traffic was served, and what the law says."""

    line: int
    reported_len: int
    hit_len: int
    """By the law."""


@dataclass(slots=True)
class CauseTotal:
    """One cause over the whole trace."""

    tokens: int = 0
    requests: int = 0
    behind: list[Behind] = field(default_factory=list)
    """Those with most tokens, the most first."""


@dataclass(frozen=True, slots=True)
class Change:
    """One option changed."""

    change: str
    cost: str
    saved_tokens: int
    """Recomputed less than now; negative: more."""


@dataclass(slots=True, kw_only=True)
class Traffic:
    """One law's answer to a trace."""

    law_id: str
    options: dict[str, Any]
    requests: int = 0
    prompt_tokens: int = 0
    causes: dict[Cause, CauseTotal] = field(default_factory=dict)
    refused: int = 0
    first_refusal: str | None = None
    reported: int = 0
    """Requests whose hit the trace tells."""
    disagreements: list[Disagreement] = field(default_factory=list)
    """The first of those that the law contradicts."""
    disagreeing: int = 0
    changes: tuple[Change, ...] | None = None
    """Best first; None: not asked."""

    @property
    def reused(self) -> int:
        """Tokens from the cache."""
        return self.causes[Cause.REUSED].tokens if Cause.REUSED in self.causes else 0

    def by_weight(self) -> list[tuple[Cause, CauseTotal]]:
        """Causes of recomputed tokens, the most tokens first."""
        lost = [(cause, total) for cause, total in self.causes.items() if cause is not Cause.REUSED]
        return sorted(lost, key=lambda each: -each[1].tokens)


def traffic(
    trace: TraceFile,
    law_id: str,
    options: Mapping[str, Any],
    *,
    with_changes: bool = True,
    progress: Progress = lambda _: None,
) -> Traffic:
    """Send the whole trace to a law. Raises UsageError (trace, options) and LawDoesNotCover (options).

    `progress` is told in words what is being done.
    """
    found = Traffic(law_id=law_id, options=dict(options))
    law, reader = make_law(law_id, options), reader_of(trace)
    reported = _Reported(found)
    by_blocks = law.reads_chains and not isinstance(reader, Own)
    serve = law.replay() if by_blocks else law.serve
    for number, (line, reported_len, sent) in enumerate((_by_blocks if by_blocks else _sent)(reader, law_id)):
        if number % STEP == 0:
            progress(f"{law_id}: {number:,} requests")
        try:
            expectation = serve(sent.request, sent.output_ids)
        except LawDoesNotCover as why:
            found.refused += 1
            found.first_refusal = found.first_refusal or f"line {line}: {why}"
            continue
        found.requests += 1
        found.prompt_tokens += sent.request.prompt_len
        for cause, tokens in expectation.ledger.by_cause().items():
            total = found.causes.setdefault(cause, CauseTotal())
            total.tokens += tokens
            total.requests += 1
            behind = (tokens, -line, Behind(tokens, line, sent.request.prompt_len, expectation.hit_len))
            reported.keep(cause, behind)
        reported.compare(line, reported_len, expectation.hit_len)
    if not found.requests and not found.refused:
        raise UsageError(f"{trace.path}: holds no request")
    reported.close()
    if with_changes:
        found.changes = tuple(_changes(trace, found, progress))
    return found


def world_at(trace: TraceFile, line: int, law_id: str, options: Mapping[str, Any]) -> tuple[World, int | None]:
    """Everything up to the request of one line, and what the engine reported for it. UsageError where it has none."""
    sent = []
    for number, reported_len, each in _sent(reader_of(trace), law_id):
        sent.append(each)
        if number == line:
            return World(law_id=law_id, options=options, sent=tuple(sent)), reported_len
        if number > line:
            break
    raise UsageError(f"{trace.path}: no request begins in line {line}")


class _Reported:
    """The few requests that are named: the largest of each cause, and the first disagreements."""

    def __init__(self, found: Traffic) -> None:
        self._found = found
        self._heaps: dict[Cause, list[tuple[int, int, Behind]]] = {}

    def keep(self, cause: Cause, behind: tuple[int, int, Behind]) -> None:
        heap = self._heaps.setdefault(cause, [])
        if len(heap) < MOST_BEHIND:
            heapq.heappush(heap, behind)
        elif behind > heap[0]:
            heapq.heapreplace(heap, behind)

    def compare(self, line: int, reported_len: int | None, hit_len: int) -> None:
        if reported_len is None:
            return
        self._found.reported += 1
        if reported_len != hit_len:
            self._found.disagreeing += 1
            if len(self._found.disagreements) < MOST_BEHIND:
                self._found.disagreements.append(Disagreement(line, reported_len, hit_len))

    def close(self) -> None:
        for cause, heap in self._heaps.items():
            self._found.causes[cause].behind = [each[2] for each in sorted(heap, reverse=True)]


def _changes(trace: TraceFile, now: Traffic, progress: Progress) -> Iterator[Change]:
    """Every change that this trace would notice, the best first."""
    job = Job(trace=trace, law=now.law_id, options=now.options)
    found = []
    for variant in variants(job):
        told = partial(_of_change, progress, variant.change or "")
        other = traffic(trace, variant.law, variant.options, with_changes=False, progress=told)
        saved = (now.prompt_tokens - now.reused) - (other.prompt_tokens - other.reused)
        if other.refused == now.refused and saved:
            found.append(Change(variant.change or "", variant.cost or "", saved))
    yield from sorted(found, key=lambda each: -each.saved_tokens)


def _of_change(progress: Progress, change: str, text: str) -> None:
    progress(f"{change}: {text}")


def _by_blocks(reader: TraceReader, law_id: str) -> Iterator[tuple[int, int | None, Sent]]:
    """As `_sent`, of traces without token IDs: no token is drawn."""
    for each in feed(reader, chained=True, outputs=False):
        yield each.line, None, Sent(each.request, each.outputs)


def _sent(reader: TraceReader, law_id: str) -> Iterator[tuple[int, int | None, Sent]]:
    """Line, hit reported by an engine of the law's kind, and request with its answer.

    An answer that nobody knows continues no prompt.
    """
    system = law_id.partition("@")[0]
    form = TokenForm(DRAWN_BELOW)
    for each in reader:
        output = (UNUSED,) if each.output_ids is None else tuple(each.output_ids.tolist())
        request = TokenRequest(
            request_id=f"line {each.line}",
            ids=tuple((form.ids(each) if each.ids is None else each.ids).tolist()),
            max_tokens=max(1, len(output)),
            namespace=each.namespace,
            lora=each.lora,
        )
        served_by = reader.head.source if isinstance(reader, Own) and reader.head else None
        reported_len = each.hit_len if served_by in (system, UNNAMED_SOURCE) else None
        yield each.line, reported_len, Sent(request, output)


def trace_file(path: Path, format_name: str | None, first: int | None, *, skip_malformed: bool) -> TraceFile:
    """A trace as the command line names it."""
    return TraceFile(path=path, format=format_name, limit=first, skip_malformed=skip_malformed)
