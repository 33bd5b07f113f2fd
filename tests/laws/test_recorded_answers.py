"""Laws against what the engines' own cache code answered to random sequences (`recorded_answers`)."""

from __future__ import annotations

import pytest

from harness.cases.subjects import LawSubject
from harness.fuzz.configurations import Configuration
from harness.fuzz.duel import differing
from tests.laws.recorded_answers import ALL, case_of, checksum, law_of, outcome, read

RECORDED = read()


KNOWN = [each for each in ALL if (each.engine, each.name) in RECORDED]


@pytest.mark.parametrize("configuration", KNOWN, ids=lambda each: f"{each.engine} {each.name}")
def test_the_law_says_what_the_engine_said(configuration: Configuration) -> None:
    for recorded in RECORDED[configuration.engine, configuration.name]:
        case = case_of(configuration, recorded.variant, recorded.sequence)
        assert checksum(case) == recorded.drawn, "the sequences are drawn otherwise now; record the answers anew"
        law = law_of(case, recorded.options)
        subject = LawSubject(lambda _, law=law: law)  # type: ignore[misc]
        subject.begin(case)
        for index, answer in enumerate(recorded.answers):
            predicted = subject.send(index)
            seen = outcome(predicted.sent, tuple(answer))
            assert not differing(predicted, seen), f"{case.id}, request {index}: {differing(predicted, seen)}"
        law.check_integrity()
