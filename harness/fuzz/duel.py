"""One sequence, law and engine together: the first answer that differs."""

from __future__ import annotations

from dataclasses import dataclass

from harness.cases.format import Case
from harness.cases.subjects import LawSubject, Outcome, Subject
from reference_engine.laws.base import Expectation


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """An answer in which law and engine differ."""

    index: int
    """Number of the request."""
    law: Outcome
    engine: Outcome
    differences: tuple[str, ...]

    @property
    def expectation(self) -> Expectation:
        """The law's."""
        assert self.law.expectation is not None
        return self.law.expectation


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """How far one sequence went."""

    engine: tuple[Outcome, ...]
    """The engine's answers, the differing one included."""
    hits: int
    """Requests of which the engine reused something."""
    mismatch: Mismatch | None


def duel(case: Case, engine: Subject, law: LawSubject | None = None) -> Duel:
    """Ask both until they differ or the sequence ends.

    `law` replaces the engine's own (tests). Raises LawDoesNotCover, RequestRefused, EngineFailed, EngineUnavailable.
    """
    law = law or LawSubject(engine.law)
    engine.begin(case)
    law.begin(case)
    answers: list[Outcome] = []
    hits = 0
    for index in range(len(case.requests)):
        observed = engine.send(index)
        answers.append(observed)
        hits += bool(observed.hit_len)
        predicted = law.predict(observed.sent, observed.output_ids)
        if differences := differing(predicted, observed):
            mismatch = Mismatch(index=index, law=predicted, engine=observed, differences=differences)
            return Duel(engine=tuple(answers), hits=hits, mismatch=mismatch)
    return Duel(engine=tuple(answers), hits=hits, mismatch=None)


def differing(law: Outcome, engine: Outcome) -> tuple[str, ...]:
    """Sentences for hit, start, prefill steps and backed length; what one side does not say is not compared."""
    pairs = (
        ("hit", law.hit_len, engine.hit_len),
        ("start", law.position_start, engine.position_start),
        ("backed", _backed(law), None if engine.backed_len is None else _backed(engine)),
        ("steps", law.steps, engine.steps),
    )
    return tuple(
        f"{name}: law {said}, engine {seen}"
        for name, said, seen in pairs
        if said is not None and seen is not None and said != seen
    )


def _backed(outcome: Outcome) -> int | None:
    """Tokens of the hit that every group holds."""
    if outcome.hit_len is None or outcome.backed_len is None:
        return outcome.hit_len
    return min(outcome.hit_len, outcome.backed_len)


def with_answers(case: Case, answers: tuple[Outcome, ...], note: str) -> Case:
    """The sequence as a case file states it: up to the last answer, with the engine's own hits."""
    requests = [
        request.model_copy(update={"hit_len": answer.hit_len, "position_start": answer.position_start})
        for request, answer in zip(case.requests, answers, strict=False)
    ]
    return case.model_copy(update={"requests": tuple(requests), "note": note})
