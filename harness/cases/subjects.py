"""What answers a case: a law, or an engine's own lookup code. Engines that run a model are in `served.py`.

A subject is begun with a case (its engine and options, an empty cache) and then takes its requests one by one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adapters.lookup import Lookup, open_lookup
from harness.cases.fitting import Fitted, fit
from harness.cases.format import Case
from reference_engine.laws.base import Expectation, Law, Lease
from reference_engine.laws.registry import make_law
from vocabulary.engine import Fidelity, Reply, Span, TokenRequest
from vocabulary.errors import EngineFailed, LawDoesNotCover


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One answer; None: the subject does not say."""

    sent: TokenRequest
    """As it was sent: fitted into the model's vocabulary, earlier outputs replaced by what was really generated."""
    hit_len: int | None
    position_start: int | None
    steps: tuple[Span, ...] | None
    """Prefill steps as spans of prompt positions."""
    backed_len: int | None
    """Tokens below which every layer group holds what the hit claims."""
    expectation: Expectation | None = None
    """Only a law's."""
    first_logprob: float | None = None
    logit_shift: float | None = None
    """Largest difference of a logit to a cold run (served only, where asked for)."""
    output_ids: tuple[int, ...] = ()


class Subject(Protocol):
    """Answers the requests of one case after the other."""

    level: Fidelity

    def begin(self, case: Case) -> None:
        """Empty cache, the case's configuration. Raises LawDoesNotCover, UsageError or EngineUnavailable."""
        ...

    def send(self, index: int) -> Outcome:
        """Request `index` of the case begun; call them in order."""
        ...

    def law(self, case: Case) -> Law:
        """The law of the configuration begun; LawDoesNotCover or UsageError where there is none."""
        ...

    def close(self) -> None:
        """Stop what was started; never raises."""
        ...


class LawSubject:
    """A law."""

    level = Fidelity.LAW

    def __init__(self, make: Callable[[Case], Law] | None = None) -> None:
        """`make` builds the law of a case; the one it names where absent."""
        self._make = make or law_of

    def begin(self, case: Case) -> None:
        """A new law: a reset would keep what a real reset keeps too, such as the order of slots."""
        self._case, self._law = case, StepRecorder(self._make(case))

    def send(self, index: int) -> Outcome:
        """Predict, then tell the law the output that the case states."""
        request = self._case.token_request(index)
        return self.predict(request, self._case.requests[index].output_ids)

    def predict(self, request: TokenRequest, output_ids: Sequence[int]) -> Outcome:
        """The same for any request, with the output an engine really gave."""
        expectation, steps = self._law.send(request)
        self._law.law.finish(request, output_ids)
        return Outcome(
            sent=request,
            hit_len=expectation.hit_len,
            position_start=expectation.position_start,
            steps=steps,
            backed_len=expectation.backed_len,
            expectation=expectation,
            output_ids=tuple(output_ids),
        )

    def law(self, case: Case) -> Law:
        """Another of the same."""
        return self._make(case)

    def close(self) -> None:
        """Nothing runs."""


class StepRecorder:
    """A law with its prefill steps written down."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self._knows_steps = type(law).chunk_end is not Law.chunk_end
        self._steps: list[Span] = []
        inner = law.chunk_end

        def chunk_end(lease: Lease) -> int:
            start, end = lease.computed_len, inner(lease)
            self._steps.append((start, end))
            return end

        law.chunk_end = chunk_end  # type: ignore[method-assign]

    def send(self, request: TokenRequest) -> tuple[Expectation, tuple[Span, ...] | None]:
        """Expectation and steps; no steps from a law whose hits do not depend on them."""
        self._steps.clear()
        expectation = self.law.send(request)
        return expectation, tuple(self._steps) if self._knows_steps else None


class LookupSubject:
    """An engine's own scheduler and cache code; one worker at a time, reconfigured between cases."""

    level = Fidelity.LOOKUP

    def __init__(self, opener: Callable[[Case, Path], Lookup] | None = None) -> None:
        """`opener` starts the worker of a case; the registered one where absent."""
        self._open = opener or (lambda case, folder: open_lookup(case.engine, case.law_options, folder))
        self._lookup: Lookup | None = None
        self._engine: str | None = None
        self._options: dict[str, object] | None = None
        self._logs = tempfile.TemporaryDirectory(prefix="hitparity-lookup-")
        self._starts = 0

    def begin(self, case: Case) -> None:
        """Start, reconfigure or reset, whichever is enough."""
        if any(request.external_hit is not None or request.fork_of is not None for request in case.requests):
            raise LawDoesNotCover(f"{case.engine}: external hits and forks have no lookup to ask")
        options = case.law_options
        if self._lookup is None or self._engine != case.engine:
            self.close_worker()
            self._starts += 1
            folder = Path(self._logs.name) / str(self._starts)
            folder.mkdir()
            self._lookup, self._engine = self._open(case, folder), case.engine
        elif self._options != options:
            self._options = None
            self._lookup.reconfigure(options)
        elif not self._lookup.reset():
            raise EngineFailed(f"{case.engine}: the lookup worker could not empty its cache")
        self._options = options
        self._case = case
        self._fitted = fit(case, self._lookup.facts.vocab_size)

    def send(self, index: int) -> Outcome:
        """Ask, giving the output that the case states."""
        assert self._lookup is not None
        request, output = self._fitted.request(self._case, index)
        return outcome_of(request, self._lookup.send(request, output))

    def law(self, case: Case) -> Law:
        """By the case's engine and options."""
        return law_of(case)

    def close_worker(self) -> None:
        """End the worker that runs, if any."""
        if self._lookup is not None:
            self._lookup.close()
        self._lookup = self._engine = self._options = None

    def close(self) -> None:
        """End the worker and drop its log."""
        self.close_worker()
        self._logs.cleanup()

    _fitted: Fitted


def law_of(case: Case) -> Law:
    """The law a case names."""
    return make_law(case.engine, case.law_options)


def outcome_of(request: TokenRequest, reply: Reply) -> Outcome:
    """What an engine replied."""
    return Outcome(
        sent=request,
        hit_len=reply.hit_len,
        position_start=reply.position_start,
        steps=reply.steps,
        backed_len=reply.backed_len,
        first_logprob=reply.first_logprob,
        output_ids=reply.output_ids,
    )
