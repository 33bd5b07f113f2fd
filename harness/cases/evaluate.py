"""One case against one subject: what it answered, what differs from the stated hits, and what is a finding anyway."""

from __future__ import annotations

from dataclasses import dataclass

from harness.cases.format import Case, CaseRequest
from harness.cases.reading import Placed
from harness.cases.subjects import LawSubject, Outcome, Subject
from harness.records import Finding, FindingKind
from reference_engine.laws.base import Expectation
from reference_engine.laws.parts.history import History
from vocabulary.engine import Fidelity, TokenRequest
from vocabulary.errors import LawDoesNotCover, RequestRefused, UsageError
from vocabulary.ledger import Cause, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request of a case, answered."""

    index: int
    stated: CaseRequest
    prompt_len: int
    lcp_len: int
    """Longest common prefix with anything computed before in this namespace, in tokens."""
    outcome: Outcome
    law: Expectation | None
    """What the law says about the same request; None: it does not cover the case."""
    ledger: Ledger
    differences: tuple[str, ...]
    """Sentences; empty where everything stated came out."""
    findings: tuple[Finding, ...]

    @property
    def stated_ledger(self) -> Ledger:
        """The ledger as the stated start (or else hit) would have it."""
        start = self.stated.hit_len if self.stated.position_start is None else self.stated.position_start
        return self.ledger if start is None else self.ledger.observed(min(start, self.prompt_len))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One case."""

    placed: Placed
    level: Fidelity
    answers: tuple[Answered, ...] = ()
    not_run: str | None = None
    """Why this case could not be run at this level, or no further than its answers."""

    @property
    def differing(self) -> tuple[Answered, ...]:
        """Requests of which something stated did not come out."""
        return tuple(answer for answer in self.answers if answer.differences)


def evaluate(placed: Placed, subject: Subject) -> Evaluated:
    """Run one case. EngineUnavailable and EngineFailed are the caller's."""
    case = placed.case
    if case.by not in (None, subject.level):
        return Evaluated(placed=placed, level=subject.level, not_run=f"made for level {case.by}")
    if subject.level is not Fidelity.SERVED and any(request.logit_shift for request in case.requests):
        return Evaluated(placed=placed, level=subject.level, not_run="logits are stated, and only a model has them")
    answers: list[Answered] = []
    try:
        subject.begin(case)
        law = None if isinstance(subject, LawSubject) else _companion(case, subject)
        history = History()
        for index in range(len(case.requests)):
            answer = _answer(case, index, subject, law, history)
            answers.append(answer)  # one by one: those before a refusal count
    except (LawDoesNotCover, UsageError, RequestRefused) as why:
        return Evaluated(placed=placed, level=subject.level, answers=tuple(answers), not_run=str(why))
    return Evaluated(placed=placed, level=subject.level, answers=tuple(answers))


def _companion(case: Case, subject: Subject) -> LawSubject | None:
    """The law beside an engine, for causes; None where there is none."""
    law = LawSubject(subject.law)
    try:
        law.begin(case)
    except (LawDoesNotCover, UsageError):
        return None
    return law


def _answer(case: Case, index: int, subject: Subject, companion: LawSubject | None, history: History) -> Answered:
    stated, request = case.requests[index], case.token_request(index)
    outcome = subject.send(index)
    law = outcome.expectation
    if companion is not None:
        law = companion.predict(outcome.sent, outcome.output_ids or stated.output_ids).expectation
    lcp, elsewhere = (find(request.array, request.space) for find in (history.lcp, history.lcp_elsewhere))
    history.add(request.computed(stated.output_ids), request.space)
    findings = tuple(_findings(outcome, lcp, request))
    return Answered(
        index=index,
        stated=stated,
        prompt_len=request.prompt_len,
        lcp_len=lcp,
        outcome=outcome,
        law=law,
        ledger=ledger_of(outcome, law, request, lcp, elsewhere),
        differences=tuple(_differences(stated, outcome, findings)),
        findings=findings,
    )


def ledger_of(outcome: Outcome, law: Expectation | None, request: TokenRequest, lcp: int, elsewhere: int) -> Ledger:
    """The observed ledger: the law's causes, or nothing claimed where there is no law."""
    start = outcome.hit_len if outcome.position_start is None else outcome.position_start
    start = min(start or 0, request.prompt_len)
    if law is not None:
        return law.ledger.observed(start)
    ceilings = [
        (Cause.NOVEL, max(lcp, elsewhere, start)),
        (Cause.NAMESPACE, max(lcp, start)),
        (Cause.LAST_TOKEN, max(request.prompt_len - 1, start)),
        (Cause.NO_LAW, start),
    ]
    return Ledger.waterfall(request.prompt_len, ceilings)


def _findings(outcome: Outcome, lcp: int, request: TokenRequest) -> list[Finding]:
    found = []
    hit, backed = outcome.hit_len, outcome.backed_len
    if hit is not None and backed is not None and hit > backed:
        detail = f"hit {hit}, but some group of layers holds only {backed} of these tokens"
        found.append(Finding(kind=FindingKind.UNBACKED, detail=detail))
    moved = outcome.expectation.approximate_len if outcome.expectation else 0
    if request.external_hit is None and hit is not None and hit > lcp:
        detail = f"hit {hit} is longer than the true common prefix {lcp}"
        found.append(Finding(kind=FindingKind.APPROXIMATE, detail=detail))
    elif moved:
        detail = f"{moved} tokens of the hit were computed behind another prefix and moved"
        found.append(Finding(kind=FindingKind.APPROXIMATE, detail=detail))
    return found


def _differences(stated: CaseRequest, outcome: Outcome, findings: tuple[Finding, ...]) -> list[str]:
    pairs = (
        ("hit", outcome.hit_len, stated.hit_len),
        ("start", outcome.position_start, stated.position_start),
        ("backed", outcome.hit_len if outcome.backed_len is None else outcome.backed_len, stated.backed_len),
    )
    found = [
        f"{name} {'not reported' if got is None else got}, stated {want}"
        for name, got, want in pairs
        if want is not None and got != want
    ]
    if stated.positive and not outcome.hit_len:
        found.append(f"hit {outcome.hit_len}, stated to be positive")
    kinds = {finding.kind for finding in findings}
    found += [f"no finding {kind.value}, one is stated" for kind in stated.findings if kind not in kinds]
    if stated.logit_shift is not None and not (outcome.logit_shift or 0) > stated.logit_shift:
        shift = "unknown" if outcome.logit_shift is None else f"{outcome.logit_shift:.3g}"
        found.append(f"logits shift by {shift}, stated more than {stated.logit_shift}")
    return found
