"""Many cases: each at its level, sorted so that an engine is started and reconfigured as seldom as possible."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.cases.evaluate import Evaluated, evaluate
from harness.cases.reading import Placed
from harness.cases.served import ServedSubject
from harness.cases.subjects import LawSubject, LookupSubject, Subject
from vocabulary.engine import Fidelity
from vocabulary.errors import EngineFailed, EngineUnavailable, ExitCode

SUBJECTS: dict[Fidelity, Callable[[], Subject]] = {
    Fidelity.LAW: LawSubject,
    Fidelity.LOOKUP: LookupSubject,
    Fidelity.SERVED: ServedSubject,
}
MOST_FAILURES = 3
"""Configurations in a row that an engine does not start with, before it is not tried any more."""


@dataclass(frozen=True, slots=True)
class Checked:
    """All cases, in the order they were given."""

    cases: tuple[Evaluated, ...]

    @property
    def requests(self) -> int:
        """Requests answered."""
        return sum(len(case.answers) for case in self.cases)

    @property
    def differing(self) -> int:
        """Requests of which something stated did not come out."""
        return sum(len(case.differing) for case in self.cases)

    @property
    def not_run(self) -> tuple[Evaluated, ...]:
        """Cases that could not be run, or not to their end."""
        return tuple(case for case in self.cases if case.not_run is not None)

    @property
    def findings(self) -> int:
        """Requests with a finding."""
        return sum(bool(answer.findings) for case in self.cases for answer in case.answers)

    @property
    def code(self) -> ExitCode:
        """1: something differs; 3: nothing differs, but a case was not run."""
        if self.differing:
            return ExitCode.FINDINGS
        return ExitCode.INCONCLUSIVE if self.not_run else ExitCode.CLEAN

    @property
    def summary(self) -> str:
        """Such as "1,234 requests, 0 differ; 2 with findings; 3 of 40 cases not run"."""
        parts = [f"{self.requests:,} request{'' if self.requests == 1 else 's'}, {self.differing:,} differ"]
        if self.findings:
            parts.append(f"{self.findings:,} with findings")
        if self.not_run:
            parts.append(f"{len(self.not_run):,} of {len(self.cases):,} cases not run")
        return "; ".join(parts)


def check(
    cases: Sequence[Placed],
    level: Fidelity | None = None,
    *,
    subjects: dict[Fidelity, Callable[[], Subject]] = SUBJECTS,
    on_case: Callable[[Evaluated], None] = lambda _: None,
) -> Checked:
    """Evaluate all cases; without a level each at the one it is made for, or by law.

    An engine that cannot be started leaves its cases not run; `on_case` sees each result as it is known.
    """
    levels = [level or placed.case.by or Fidelity.LAW for placed in cases]
    results: dict[int, Evaluated] = {}
    for wanted in Fidelity:
        chosen = [index for index in range(len(cases)) if levels[index] is wanted]
        if not chosen:
            continue
        subject = subjects[wanted]()
        try:
            for index, result in _run(cases, chosen, subject):
                results[index] = result
                on_case(result)
        finally:
            subject.close()
    return Checked(tuple(results[index] for index in range(len(cases))))


def _run(cases: Sequence[Placed], chosen: list[int], subject: Subject) -> Iterable[tuple[int, Evaluated]]:
    refused: dict[tuple[str, str], str] = {}
    failures: Counter[str] = Counter()
    for index in sorted(chosen, key=lambda index: (_configuration(cases[index]), index)):
        placed = cases[index]
        engine, key = placed.case.engine, _configuration(placed)
        if failures[engine] >= MOST_FAILURES:
            refused.setdefault(key, f"{engine} did not start {MOST_FAILURES} times in a row")
        if key in refused:
            yield index, Evaluated(placed=placed, level=subject.level, not_run=refused[key])
            continue
        try:
            result = evaluate(placed, subject)
            failures[engine] = 0
        except EngineUnavailable as why:  # no environment, or it cannot start as this case configures it
            failures[engine] += 1
            refused[key] = str(why)
            result = Evaluated(placed=placed, level=subject.level, not_run=str(why))
        except EngineFailed as why:
            result = Evaluated(placed=placed, level=subject.level, not_run=str(why))
        yield index, result


def _configuration(placed: Placed) -> tuple[str, str]:
    return placed.case.engine, json.dumps(placed.case.law_options, sort_keys=True)
