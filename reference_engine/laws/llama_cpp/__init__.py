"""The laws of llama.cpp's server and of llama-cpp-python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.entry import LawEntry, only_full, pages, positive, share
from reference_engine.laws.llama_cpp.slots import LlamaCppPython, LlamaCppServer


def _server() -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        only_full(LlamaCppServer.id, options)
        slots = positive(options, "n_parallel", 1)
        return LlamaCppServer(
            n_parallel=slots,
            slot_prompt_similarity=share(options, "slot_prompt_similarity", 0.1),
            n_ctx_slot=pages(pool_tokens, slots, options, "n_ctx_slot"),
        )

    return LawEntry(
        LlamaCppServer.id,
        "every position kept, no RAM cache, no chunk reuse",
        ("n_parallel", "slot_prompt_similarity", "n_ctx_slot"),
        build,
    )


def _in_process() -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        only_full(LlamaCppPython.id, options)
        return LlamaCppPython(n_ctx=pages(pool_tokens, 1, options, "n_ctx"))

    return LawEntry(LlamaCppPython.id, "every position kept", ("n_ctx",), build)


ENTRIES = (_server(), _in_process())
