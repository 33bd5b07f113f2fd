"""The law of the reference engine as configured, with the size of its pool among the law's own options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.registry import make_law
from vocabulary.errors import UsageError

DEFAULT_LAW = "vllm@0.32"
POOLS = {
    "vllm": ("block_size", "num_blocks"),
    "sglang": ("page_size", "num_pages"),
    "llama.cpp": ("n_parallel", "n_ctx_slot"),
}
"""Law family to the two options whose product is its pool in tokens; the first is the user's, the second follows."""


def sized_law(law_id: str, options: Mapping[str, Any], pool_tokens: int) -> tuple[str, dict[str, Any]]:
    """The law id and its options with the pool's size as that law counts it.

    The same pair then makes the engine's cache manager and the harness's prediction, evictions included. Raises
    UsageError for an unknown law or option and for a law that the engine cannot follow, LawDoesNotCover for option
    values outside the law.
    """
    law = make_law(law_id, options)
    if not law.caps_last_token:
        raise UsageError(
            f"reference: law {law_id} may reuse a whole prompt and needs the logits of an earlier request, which this "
            f'engine does not keep; use "llama.cpp", a slot with the cap'
        )
    if _family(law_id) not in POOLS:
        raise UsageError(
            f"reference: law {law_id} has no pool that this engine can size; use one of {', '.join(POOLS)}"
        )
    unit_option, count_option = POOLS[_family(law_id)]
    unit = options.get(unit_option, law.granule)  # one llama.cpp slot, like its granule, is 1
    if pool_tokens < unit:
        raise UsageError(f"reference: pool_tokens = {pool_tokens} is less than {unit_option} = {unit}; raise it")
    return law_id, {unit_option: unit, count_option: pool_tokens // unit, **options}


def _family(law_id: str) -> str:
    return law_id.partition("@")[0]
