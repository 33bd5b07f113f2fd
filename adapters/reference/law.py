"""The law of the reference engine as configured, with the sizes of its pools among the law's own options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reference_engine.laws.entry import GROUPS, layer_groups
from reference_engine.laws.registry import make_law
from vocabulary.errors import UsageError
from vocabulary.groups import Kind, LayerGroup

DEFAULT_LAW = "vllm@0.32"
STATES = 64
"""State slots of a pool that its law counts apart."""


def sized_law(
    law_id: str, options: Mapping[str, Any], pool_tokens: int, groups: Sequence[str] = ("full",)
) -> tuple[str, dict[str, Any]]:
    """The law id and its options with the pools' sizes as that law counts them; `groups`: the model's, where the
    options name none.

    The same pair then makes the engine's cache manager and the harness's prediction, evictions included. Raises
    UsageError for an unknown law or option and for a law that the engine cannot follow, LawDoesNotCover for option
    values outside the law.
    """
    if GROUPS not in options and tuple(groups) != ("full",):
        options = {GROUPS: list(groups), **options}
    law = make_law(law_id, options)
    if not law.caps_last_token:
        raise UsageError(
            f"reference: law {law_id} may reuse a whole prompt and needs the logits of an earlier request, which this "
            f'engine does not keep; use "llama.cpp", a slot with the cap'
        )
    asked = layer_groups(options)
    unit = max(group.block or law.granule for group in asked)
    if pool_tokens < unit:
        raise UsageError(f"reference: pool_tokens = {pool_tokens} is less than a block of {unit} tokens; raise it")
    sized = {**_sizes(law_id.partition("@")[0], options, asked, unit, pool_tokens), **options}
    if not make_law(law_id, sized).rooms:
        raise UsageError(f"reference: law {law_id} with {dict(options)} only predicts; no engine follows it")
    return law_id, sized


def _sizes(
    family: str, options: Mapping[str, Any], groups: Sequence[LayerGroup], unit: int, pool_tokens: int
) -> dict[str, Any]:
    """What the user's `pool_tokens` is in the law's own options; nothing where it knows no limit."""
    if family in ("vllm", "vllm-ascend"):
        if "num_gpu_blocks_override" in options:
            return {}
        sizes = {} if any(group.block for group in groups) else {"block_size": unit}
        return sizes | {"num_blocks": pool_tokens // unit * len(groups)}
    if family == "sglang":
        if len(groups) == 1:
            return {"page_size": unit, "num_pages": pool_tokens // unit}
        states = {"max_mamba_cache_size": STATES} if any(group.kind is Kind.GDN for group in groups) else {}
        return {"page_size": unit, "max_total_tokens": pool_tokens} | states
    if family == "llama.cpp":
        slots = options.get("n_parallel", 1)
        return {"n_parallel": slots, "n_ctx_slot": pool_tokens // slots}
    return {}
