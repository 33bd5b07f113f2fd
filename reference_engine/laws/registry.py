"""Law id and options to a law, built on first use. A law never guesses outside what it covers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.sglang import VERSIONS as SGLANG_VERSIONS
from reference_engine.laws.sglang import SglangFullAttention
from reference_engine.laws.slots import LlamaCppPython, LlamaCppServer
from reference_engine.laws.vllm import VERSIONS as VLLM_VERSIONS
from reference_engine.laws.vllm import VllmFullAttention
from vocabulary.errors import LawDoesNotCover, UsageError


@dataclass(frozen=True, slots=True)
class LawEntry:
    """One law id: what it covers, the options it reads, and how to build it."""

    id: str
    covers: str
    options: tuple[str, ...]
    build: Callable[[Mapping[str, Any], int | None], Law]
    """`(options, pool_tokens)`; `pool_tokens=None` predicts with an unbounded pool."""


def _vllm(version: str) -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        block = _positive(options, "block_size", 16)
        return VllmFullAttention(
            version,
            block,
            enable_prefix_caching=_flag(options, "enable_prefix_caching", default=True),
            num_blocks=_pages(pool_tokens, block, options, "num_blocks"),
        )

    return LawEntry(
        f"vllm@{version}",
        "full attention, no speculation",
        ("block_size", "enable_prefix_caching", "num_blocks"),
        build,
    )


def _sglang(version: str) -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        page = _positive(options, "page_size", 1)
        return SglangFullAttention(
            version,
            page,
            disable_radix_cache=_flag(options, "disable_radix_cache", default=False),
            num_pages=_pages(pool_tokens, page, options, "num_pages"),
        )

    return LawEntry(
        f"sglang@{version}",
        "full attention, no speculation",
        ("page_size", "disable_radix_cache", "num_pages"),
        build,
    )


def _llama_cpp() -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        slots = _positive(options, "n_parallel", 1)
        return LlamaCppServer(
            n_parallel=slots,
            slot_prompt_similarity=_share(options, "slot_prompt_similarity", 0.1),
            n_ctx_slot=_pages(pool_tokens, slots, options, "n_ctx_slot"),
        )

    return LawEntry(
        LlamaCppServer.id,
        "every position kept, no RAM cache, no chunk reuse",
        ("n_parallel", "slot_prompt_similarity", "n_ctx_slot"),
        build,
    )


def _llama_cpp_python() -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        return LlamaCppPython(n_ctx=_pages(pool_tokens, 1, options, "n_ctx"))

    return LawEntry(LlamaCppPython.id, "every position kept", ("n_ctx",), build)


LAWS: dict[str, LawEntry] = {
    entry.id: entry
    for entry in (
        *(_vllm(version) for version in VLLM_VERSIONS),
        *(_sglang(version) for version in SGLANG_VERSIONS),
        _llama_cpp(),
        _llama_cpp_python(),
    )
}


def make_law(law_id: str, options: Mapping[str, Any], *, pool_tokens: int | None = None) -> Law:
    """Build a law.

    Raises UsageError for an unknown id or option and LawDoesNotCover for options outside the rule.
    """
    entry = LAWS.get(law_id)
    if entry is None:
        near = difflib.get_close_matches(law_id, LAWS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see `hitparity list laws`"
        raise UsageError(f"unknown law {law_id!r}; {hint}")
    if unknown := sorted(set(options) - set(entry.options)):
        raise UsageError(f"law {law_id} has no option {unknown[0]!r}; it reads: {', '.join(entry.options)}")
    return entry.build(options, pool_tokens)


def _positive(options: Mapping[str, Any], key: str, default: int) -> int:
    value = options.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LawDoesNotCover(f"{key} = {value!r}: a positive whole number is needed")
    return value


def _flag(options: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = options.get(key, default)
    if not isinstance(value, bool):
        raise LawDoesNotCover(f"{key} = {value!r}: true or false is needed")
    return value


def _share(options: Mapping[str, Any], key: str, default: float) -> float:
    value = options.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise LawDoesNotCover(f"{key} = {value!r}: a number from 0 to 1 is needed")
    return float(value)


def _pages(pool_tokens: int | None, page_size: int, options: Mapping[str, Any], key: str) -> int | None:
    """Pages of the reference engine's pool, else those the options name; None: unbounded."""
    if pool_tokens is not None:
        return pool_tokens // page_size
    return None if options.get(key) is None else _positive(options, key, 1)
