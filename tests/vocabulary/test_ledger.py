"""Ledgers: always a partition, whatever ceilings and observations they are made from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabulary.ledger import Cause, Interval, Ledger

CEILINGS = st.lists(
    st.tuples(st.sampled_from([c for c in Cause if c is not Cause.REUSED]), st.integers(-3, 300)), max_size=6
)


@given(st.integers(1, 250), CEILINGS)
def test_waterfall_is_a_partition_and_its_reuse_is_the_lowest_ceiling(
    length: int, ceilings: list[tuple[Cause, int]]
) -> None:
    ledger = Ledger.waterfall(length, ceilings)
    assert sum(ledger.by_cause().values()) == length
    assert ledger.reused == max(0, min([length, *(ceiling for _, ceiling in ceilings)]))


@given(st.integers(1, 250), CEILINGS, st.data())
def test_an_observation_moves_only_the_border_of_the_reuse(
    length: int, ceilings: list[tuple[Cause, int]], data: st.DataObject
) -> None:
    expected = Ledger.waterfall(length, ceilings)
    start = data.draw(st.integers(0, length))
    seen = expected.observed(start)
    assert seen.reused == start
    assert seen.tokens(Cause.UNEXPLAINED) - expected.tokens(Cause.UNEXPLAINED) == max(0, expected.reused - start) or (
        start > expected.reused
    )
    for interval in seen.intervals:
        if interval.cause not in (Cause.REUSED, Cause.UNEXPLAINED):
            assert any(
                i.cause is interval.cause and i.start <= interval.start and interval.end <= i.end
                for i in expected.intervals
            )


@pytest.mark.parametrize("start", [-1, 11])
def test_a_start_outside_the_prompt_is_no_observation(start: int) -> None:
    with pytest.raises(ValueError, match=rf"position start {start} outside \[0, 10\]"):
        Ledger.waterfall(10, [(Cause.NOVEL, 4)]).observed(start)


def test_causes_are_booked_where_the_rule_puts_them() -> None:
    ledger = Ledger.waterfall(
        1038, [(Cause.NOVEL, 1038), (Cause.LAST_TOKEN, 1037), (Cause.GRANULE, 1024), (Cause.EVICTED, 1024)]
    )
    assert ledger.intervals == (
        Interval(0, 1024, Cause.REUSED),
        Interval(1024, 1037, Cause.GRANULE),
        Interval(1037, 1038, Cause.LAST_TOKEN),
    )


def test_only_neighbours_of_one_cause_are_joined() -> None:
    ledger = Ledger.waterfall(
        10, [(Cause.NOVEL, 9), (Cause.GRANULE, 8), (Cause.NOVEL, 7), (Cause.GRANULE, 5), (Cause.GRANULE, 3)]
    )
    assert ledger.intervals == (
        Interval(0, 3, Cause.REUSED),
        Interval(3, 7, Cause.GRANULE),
        Interval(7, 8, Cause.NOVEL),
        Interval(8, 9, Cause.GRANULE),
        Interval(9, 10, Cause.NOVEL),
    )


@pytest.mark.parametrize(
    "intervals",
    [
        (),
        (Interval(0, 9, Cause.NOVEL),),
        (Interval(1, 10, Cause.NOVEL),),
        (Interval(0, 5, Cause.REUSED), Interval(6, 10, Cause.NOVEL)),
        (Interval(0, 5, Cause.REUSED), Interval(5, 5, Cause.GRANULE), Interval(5, 10, Cause.NOVEL)),
        (Interval(0, 5, Cause.REUSED), Interval(4, 10, Cause.NOVEL)),
    ],
)
def test_anything_but_a_partition_is_rejected(intervals: tuple[Interval, ...]) -> None:
    with pytest.raises(ValueError, match="ledger"):
        Ledger(10, intervals)
