"""The soak test of the benchmarks for some seconds: memory flat, no descriptor and no process left."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.soak import measure


def first_and_last(row: dict[str, object], name: str) -> tuple[float, float]:
    first, last = map(float, str(row[name]).split(" to "))
    return first, last


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the reference engine needs torch")
def test_nothing_grows() -> None:
    rows = {row["engine"]: row for row in measure(0.2, ("law", "reference"))}
    for row in rows.values():
        assert row["processes_left"] == 0, row
        first, last = first_and_last(row, "descriptors")
        assert first == last, row
        first, last = first_and_last(row, "harness_mib")
        assert last - first < 8, row
    first, last = first_and_last(rows["reference"], "engine_mib")
    assert first > 50 and last - first < 16, rows["reference"]
    assert float(str(rows["reference"]["engine_growth_in_a_start_mib"])) < 16, rows["reference"]
