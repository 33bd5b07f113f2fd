"""Law id and options to a law, built on first use."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.entry import GROUPS, LawEntry
from vocabulary.errors import UsageError

SYSTEMS = {
    "vllm": "vllm",
    "vllm-ascend": "vllm_ascend",
    "sglang": "sglang",
    "llama.cpp": "llama_cpp",
    "llama-cpp-python": "llama_cpp",
    "tensorrt-llm": "tensorrt_llm",
    "deepinfer": "deepinfer",
}
"""Where the laws are whose ids begin so, in the order in which they are listed."""


class _Laws(Mapping[str, LawEntry]):
    """A system is imported when one of its laws is asked for: simulations start a process for each."""

    def __getitem__(self, law_id: str) -> LawEntry:
        return self._of(SYSTEMS[law_id.partition("@")[0]])[law_id]

    def __iter__(self) -> Iterator[str]:
        for package in dict.fromkeys(SYSTEMS.values()):
            yield from self._of(package)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @staticmethod
    def _of(package: str) -> dict[str, LawEntry]:
        entries: tuple[LawEntry, ...] = import_module(f"reference_engine.laws.{package}").ENTRIES
        return {entry.id: entry for entry in entries}


LAWS: Mapping[str, LawEntry] = _Laws()


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
