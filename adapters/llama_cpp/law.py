"""Which configurations of llama-server the slot law covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.llama_cpp.options import LlamaCppOptions
from vocabulary.errors import LawDoesNotCover

LAW = "llama.cpp"
UNREPORTED = {"cache_ram_mib", "n_cache_reuse", "slot_prompt_similarity"}
"""Options that decide the outcome and that no endpoint reports."""


def slot_law(
    options: LlamaCppOptions, facts_options: Mapping[str, Any], groups: tuple[str, ...], *, attached: bool
) -> tuple[str, dict[str, Any]]:
    """Law id and options; LawDoesNotCover where memories drop positions or something besides the slots keeps prompts.

    `attached`: only options that the user has set are known, the defaults are hitparity's own.
    """
    slots = facts_options.get("n_parallel", options.n_parallel)
    deciding = UNREPORTED | ({"kv_unified"} if slots > 1 else set())
    unsaid = sorted(deciding - options.model_fields_set) if attached else []
    gone = [group for group in groups if group.startswith("swa:") and not options.swa_full]
    other = [group for group in groups if group != "full" and not group.startswith("swa:")]
    for applies, why in (
        (unsaid, f"an attached server does not report {', '.join(unsaid)}; state it in options"),
        (gone, f"no law for the window cache of {', '.join(gone)}; swa_full = true keeps it whole"),
        (other, f"no law for {', '.join(other)} layers, which go back to context checkpoints only"),
        (options.cache_ram_mib, "no law for the RAM cache, whose use depends on history; cache_ram_mib = 0"),
        (options.n_cache_reuse, "no law for moved chunks, which are no prefix; n_cache_reuse = 0"),
        (options.kv_unified and slots > 1, "no law for slots that purge one another; kv_unified = false"),
    ):
        if applies:
            raise LawDoesNotCover(f"llama.cpp: {why}")
    law = {"n_parallel": slots, "slot_prompt_similarity": options.slot_prompt_similarity}
    return LAW, law | {name: facts_options[name] for name in ("n_ctx_slot",) if name in facts_options}
