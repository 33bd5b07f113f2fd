"""vLLM's laws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.entry import LawEntry, flag, only_full, pages, positive
from reference_engine.laws.vllm.full import VERSIONS, VllmFullAttention


def _entry(version: str) -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        block = only_full(f"vllm@{version}", options).block or positive(options, "block_size", 16)
        return VllmFullAttention(
            version,
            block,
            enable_prefix_caching=flag(options, "enable_prefix_caching", default=True),
            num_blocks=pages(pool_tokens, block, options, "num_blocks"),
        )

    return LawEntry(
        f"vllm@{version}",
        "full attention, no speculation",
        ("block_size", "enable_prefix_caching", "num_blocks"),
        build,
    )


ENTRIES = tuple(_entry(version) for version in VERSIONS)
