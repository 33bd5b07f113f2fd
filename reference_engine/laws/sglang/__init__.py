"""SGLang's laws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.entry import LawEntry
from reference_engine.laws.sglang.config import OPTIONS, VERSIONS, read
from reference_engine.laws.sglang.law import SglangLaw


def _entry(version: str) -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        return SglangLaw(read(version, options, pool_tokens))

    return LawEntry(
        f"sglang@{version}",
        "full attention, full with one sliding window, full with recurrent states; EAGLE's keys",
        OPTIONS,
        build,
    )


ENTRIES = tuple(_entry(version) for version in VERSIONS)
