"""Law id and options to a law, built on first use."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from reference_engine.laws import deepinfer, llama_cpp, sglang, tensorrt_llm, vllm, vllm_ascend
from reference_engine.laws.base import Law
from reference_engine.laws.entry import GROUPS, LawEntry
from vocabulary.errors import UsageError

LAWS: dict[str, LawEntry] = {
    entry.id: entry
    for system in (vllm, vllm_ascend, sglang, llama_cpp, tensorrt_llm, deepinfer)
    for entry in system.ENTRIES
}


def make_law(law_id: str, options: Mapping[str, Any], *, pool_tokens: int | None = None) -> Law:
    """Build a law; `options` holds the engine's own names and `groups` (`reference_engine.laws.entry`).

    Raises UsageError for an unknown id or option and LawDoesNotCover for options outside the rule.
    """
    entry = LAWS.get(law_id)
    if entry is None:
        near = difflib.get_close_matches(law_id, LAWS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see `hitparity list laws`"
        raise UsageError(f"unknown law {law_id!r}; {hint}")
    if unknown := sorted(set(options) - {GROUPS, *entry.options}):
        raise UsageError(f"law {law_id} has no option {unknown[0]!r}; it reads: {', '.join((GROUPS, *entry.options))}")
    return entry.build(options, pool_tokens)
