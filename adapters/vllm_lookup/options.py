"""Options of a lookup, under vLLM's own names; each version's worker refuses what it does not have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import Field

from adapters.base import Options
from adapters.lookup_engine import Groups

NOT_OF_THE_RULE = ("max_num_seqs", "max_model_len", "prefix_caching_hash_algo")
"""Options that change no hit of requests sent one by one: no reason for a law to refuse."""
RESOLVED = ("block_size", "max_num_batched_tokens", "max_model_len", "max_num_seqs", "enable_prefix_caching")


class VllmLookupOptions(Options):
    """Only what is set reaches vLLM; defaults are the worker's (`inside/lookup_config.py`) and vLLM's."""

    groups: Groups = ("full",)
    """Layer groups; a block left out is `block_size`."""
    block_size: int = Field(default=16, gt=0)
    max_num_batched_tokens: int = Field(default=8192, gt=0)
    max_model_len: int = Field(default=131072, gt=0)
    max_num_seqs: int = Field(default=16, gt=0)
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    prefix_caching_hash_algo: str = "sha256"
    num_gpu_blocks_override: int | None = Field(default=None, gt=1)
    """Blocks of the pool, the null block included; None: more than are ever needed, checked."""
    mamba_cache_mode: str | None = None
    """None: "align" with a recurrent group."""
    prefix_match_unit: int | None = Field(default=None, gt=0)
    prefix_cache_retention_interval: int | None = Field(default=None, ge=0)
    """Set to None: every boundary; not set: the version's default."""
    enable_mamba_fine_grained_prefix_cache: bool = False
    enable_mamba_shared_prefix_checkpoint: bool = False
    swa_bounded_replay: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    method: str = "mtp"
    num_speculative_tokens: int = Field(default=0, ge=0)
    disable_eagle_block_drop: bool = False
    disable_lookahead_block_hashes: bool = False


def law_options_of(given: Mapping[str, Any], resolved: Mapping[str, Any], law_reads: Collection[str]) -> dict[str, Any]:
    """What the law of this version gets: all that was asked for, and what the engine resolved where the law reads it.

    An option that was asked for and that the law does not read makes the law refuse: it may decide the hit.
    """
    asked = {name: value for name, value in given.items() if name in law_reads or name not in NOT_OF_THE_RULE}
    return {name: resolved[name] for name in RESOLVED if name in law_reads} | asked | {"groups": resolved["groups"]}
