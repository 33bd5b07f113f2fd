"""SGLang's laws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.entry import LawEntry, flag, only_full, pages, positive
from reference_engine.laws.sglang.full import VERSIONS, SglangFullAttention


def _entry(version: str) -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        page = only_full(f"sglang@{version}", options).block or positive(options, "page_size", 1)
        return SglangFullAttention(
            version,
            page,
            disable_radix_cache=flag(options, "disable_radix_cache", default=False),
            num_pages=pages(pool_tokens, page, options, "num_pages"),
        )

    return LawEntry(
        f"sglang@{version}",
        "full attention, no speculation",
        ("page_size", "disable_radix_cache", "num_pages"),
        build,
    )


ENTRIES = tuple(_entry(version) for version in VERSIONS)
