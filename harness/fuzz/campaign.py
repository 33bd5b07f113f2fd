"""Many random sequences of one configuration, counted; what differs is shrunk and kept as a case."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.cases.fitting import DoesNotFit
from harness.cases.format import Case
from harness.cases.served import ServedSubject
from harness.cases.subjects import LawSubject, LookupSubject, Subject
from harness.fuzz.configurations import Configuration
from harness.fuzz.duel import Mismatch, duel, with_answers
from harness.fuzz.sequences import Drawing
from harness.fuzz.shrink import MOST_TRIALS, Shrinker
from vocabulary.engine import Fidelity
from vocabulary.errors import EngineFailed, EngineUnavailable, LawDoesNotCover, RequestRefused, UsageError

MOST_UNFIT = 50
"""Sequences that do not fit before a campaign gives up, if they are more than half of all."""
MOST_FAILURES = 3
SERVED_TRIALS = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A difference, shrunk."""

    case: Case
    """Replayable; states the engine's hits."""
    mismatch: Mismatch
    sequence: int
    """Number of the random sequence it was found in."""
    requests_before: int
    tokens_before: int


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a campaign amounts to."""

    configuration: str
    engine: str
    groups: tuple[str, ...]
    options: Mapping[str, Any]
    variants: int
    against: Fidelity
    seed: int
    requests: int = 0
    """Asked of both sides and compared."""
    sequences: int = 0
    hits: int = 0
    """Requests of which the engine reused something."""
    differing: int = 0
    """Sequences with a difference; the rest of such a sequence is not compared."""
    not_covered: dict[str, int] = field(default_factory=dict)
    """Reason to sequences that a law or the engine refused, from there on not compared."""
    unfit: int = 0
    """Sequences that a tiny vocabulary could not hold."""
    failures: list[str] = field(default_factory=list)
    """Deaths of the engine."""
    seconds: float = 0.0
    found: list[Found] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Something was compared and nothing differs."""
        return bool(self.requests) and not self.differing and not self.failures


def open_subject(against: Fidelity) -> Subject:
    """The side that is not a law; keep it for all configurations of an engine."""
    if against is Fidelity.LAW:
        raise UsageError("fuzzing compares a law with an engine: --against lookup or served")
    return LookupSubject() if against is Fidelity.LOOKUP else ServedSubject()


def campaign(
    configuration: Configuration,
    requests: int,
    seed: int,
    engine: Subject,
    *,
    law: LawSubject | None = None,
    most_found: int = 1,
    on_progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Draw sequences until `requests` were compared, variant after variant, or `most_found` differences were shrunk.

    `law` replaces the configuration's own (tests). An engine that is missing or refuses a configuration is said in
    the tally, as is a law that does not cover it.
    """
    tally = Tally(
        configuration=configuration.name,
        engine=configuration.engine,
        groups=configuration.groups,
        options=configuration.options,
        variants=len(configuration.variants),
        against=engine.level,
        seed=seed,
    )
    began = time.monotonic()
    for number, variant in enumerate(configuration.variants):
        options = {**configuration.options, **variant}
        goal = requests * (number + 1) // len(configuration.variants)
        if not _variant(configuration, options, goal, tally, engine, law, most_found, on_progress):
            break
    tally.seconds = time.monotonic() - began
    return tally


def _variant(
    configuration: Configuration,
    options: dict[str, Any],
    goal: int,
    tally: Tally,
    engine: Subject,
    law: LawSubject | None,
    most_found: int,
    on_progress: Callable[[Tally], None],
) -> bool:
    """Sequences of one variant until `goal` requests in all; False: enough was found or failed."""
    refused = 0
    while tally.requests < goal and tally.unfit <= MOST_UNFIT + tally.sequences // 2:
        case = draw(configuration, options, tally.seed, tally.sequences)
        tally.sequences += 1
        try:
            result = duel(case, engine, law)
        except DoesNotFit:  # the draw's fault, not the configuration's
            tally.unfit += 1
        except (LawDoesNotCover, UsageError, RequestRefused) as why:
            reason = f"{_difference(options, configuration)}{type(why).__name__}: {why}"
            tally.not_covered[reason] = tally.not_covered.get(reason, 0) + 1
            refused += 1
        except EngineUnavailable as why:
            tally.not_covered[str(why)] = 1
            return False
        except EngineFailed as why:
            tally.failures.append(str(why))
            if isinstance(engine, LookupSubject):
                engine.close_worker()
            elif isinstance(engine, ServedSubject):
                engine.stop_engine()
            if len(tally.failures) >= MOST_FAILURES:
                return False
        else:
            refused = 0
            tally.requests += len(result.engine)
            tally.hits += result.hits
            if result.mismatch is not None:
                tally.differing += 1
                tally.found.append(_shrunk(case, tally, engine, law))
                if len(tally.found) >= most_found:
                    return False
        if refused >= MOST_FAILURES:  # the configuration itself is refused
            return True
        on_progress(tally)
    return True


def draw(configuration: Configuration, options: Mapping[str, Any], seed: int, number: int) -> Case:
    """Random sequence `number`; it depends on seed, number, engine and configuration only."""
    key = zlib.crc32(f"{configuration.engine} {configuration.name}".encode())
    rng = np.random.default_rng([seed, number, key])
    case_id = f"{configuration.engine} {configuration.name}, seed {seed}, sequence {number}"
    return Drawing(rng, configuration).case(case_id, "hitparity fuzz", dict(options))


def _shrunk(case: Case, tally: Tally, engine: Subject, law: LawSubject | None) -> Found:
    def fails(smaller: Case) -> bool:
        try:
            return duel(smaller, engine, law).mismatch is not None
        except (LawDoesNotCover, UsageError, RequestRefused):
            return False

    trials = SERVED_TRIALS if engine.level is Fidelity.SERVED else MOST_TRIALS
    small = Shrinker(fails, trials=trials).shrink(case)
    result = duel(small, engine, law)
    if result.mismatch is None:
        raise EngineFailed(f"{case.engine}: {small.id} differed and does not any more; the engine is not deterministic")
    note = f"request {result.mismatch.index}: {'; '.join(result.mismatch.differences)}"
    return Found(
        case=with_answers(small, result.engine, note),
        mismatch=result.mismatch,
        sequence=tally.sequences - 1,
        requests_before=len(case.requests),
        tokens_before=sum(len(request.prompt) for request in case.requests),
    )


def _difference(options: Mapping[str, Any], configuration: Configuration) -> str:
    """The variant in words, empty for the plain one."""
    changed = {key: value for key, value in options.items() if configuration.options.get(key, ...) != value}
    return "".join(f"{key} = {value}, " for key, value in changed.items()).removesuffix(", ") + (
        ": " if changed else ""
    )
