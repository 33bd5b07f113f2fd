"""Which configurations of llama-server its law covers, and the options the law reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.llama_cpp.options import LlamaCppOptions
from reference_engine.laws.registry import make_law
from vocabulary.errors import LawDoesNotCover

LAW = "llama.cpp"
ALWAYS = ("cache_ram_mib", "n_cache_reuse", "slot_prompt_similarity")
"""Options that decide the outcome and that no endpoint reports."""
WITH_SLOTS = ("kv_unified",)
WITH_CHECKPOINTS = ("n_batch", "n_ubatch", "n_ctx_checkpoints", "checkpoint_min_step")
WITH_WINDOWS = ("swa_full",)
READ = (
    "n_parallel", "n_ctx_slot", "cache_idle_slots", *ALWAYS, *WITH_SLOTS, *WITH_CHECKPOINTS, *WITH_WINDOWS,
    "state_bytes_per_token", "window_bytes_per_token", "recurrent_state_bytes",
)  # fmt: skip
"""All that the law reads of the resolved options, besides the layer groups."""


def server_law(
    options: LlamaCppOptions, facts_options: Mapping[str, Any], groups: tuple[str, ...], *, attached: bool
) -> tuple[str, dict[str, Any]]:
    """Law id and options; LawDoesNotCover where it refuses them, or something that decides the outcome is not known.

    `attached`: only options that the user has set are known, the defaults are hitparity's own.
    """
    known = options.model_dump(mode="json") | dict(facts_options)
    if attached:
        deciding = set(ALWAYS)
        deciding |= set(WITH_SLOTS) if known["n_parallel"] > 1 else set()
        deciding |= set(WITH_CHECKPOINTS) if groups != ("full",) else set()
        deciding |= set(WITH_WINDOWS) if any(group.startswith("swa:") for group in groups) else set()
        if unsaid := sorted(deciding - options.model_fields_set):
            raise LawDoesNotCover(
                f"llama.cpp: an attached server does not report {', '.join(unsaid)}; state it in options"
            )
        if known["cache_ram_mib"]:
            raise LawDoesNotCover(
                "llama.cpp: an attached server's RAM cache holds what was there before and cannot be emptied; "
                "start it with --cache-ram 0"
            )
    law = {"groups": list(groups)} | {name: known[name] for name in READ if known.get(name) is not None}
    make_law(LAW, law)
    return LAW, law
