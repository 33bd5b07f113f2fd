"""Engine options: what each takes at its borders, and defaults, on which every stored result rests."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from adapters.base import Options
from adapters.llama_cpp.options import LlamaCppOptions
from adapters.llama_cpp_python.options import LlamaCppPythonOptions
from adapters.reference.options import ReferenceOptions
from adapters.sglang.options import SglangOptions
from adapters.sglang_lookup.options import SglangLookupOptions
from adapters.vllm.options import VllmOptions
from adapters.vllm_lookup.options import VllmLookupOptions
from vocabulary.errors import UsageError

LEAST: dict[type[Options], dict[int, tuple[str, ...]]] = {
    LlamaCppOptions: {
        1: ("n_ctx", "n_parallel", "n_batch", "n_ubatch", "n_threads"),
        0: ("n_cache_reuse", "n_ctx_checkpoints", "checkpoint_min_step", "slot_prompt_similarity", "verbosity"),
        -1: ("cache_ram_mib",),
    },
    LlamaCppPythonOptions: {1: ("n_ctx", "n_batch", "n_ubatch", "n_threads")},
    ReferenceOptions: {1: ("pool_tokens", "pool_states", "prefill_grid", "max_num_seqs", "threads")},
    SglangOptions: {
        16: ("context_length",),
        1: ("page_size", "max_total_tokens", "mamba_track_interval", "max_mamba_cache_size", "max_running_requests"),
    },
    SglangLookupOptions: {
        1: ("page_size", "max_total_tokens", "max_mamba_cache_size", "mamba_track_interval"),
        0: ("logprob_start_len",),
    },
    VllmOptions: {
        2: ("num_gpu_blocks_override",),
        1: (
            "block_size", "prefix_match_unit", "max_num_batched_tokens", "max_num_seqs", "max_model_len",
            "kv_cache_memory_bytes", "mamba_block_size",
        ),
    },
    VllmLookupOptions: {
        2: ("num_gpu_blocks_override",),
        1: ("block_size", "max_num_batched_tokens", "max_model_len", "max_num_seqs", "prefix_match_unit"),
        0: ("prefix_cache_retention_interval", "num_speculative_tokens"),
    },
}  # fmt: skip
"""Options that are numbers: the least value of each."""
SHARES = [
    (LlamaCppOptions, "slot_prompt_similarity", (0, 1), (-0.01, 1.01)),
    (LlamaCppOptions, "verbosity", (5,), (6,)),
    (SglangOptions, "swa_full_tokens_ratio", (0.01, 1), (0, 1.01)),
    (SglangOptions, "mem_fraction_static", (0.01, 0.99), (0, 1)),
    (SglangLookupOptions, "swa_full_tokens_ratio", (0.01, 1), (0, 1.01)),
    (VllmOptions, "gpu_memory_utilization", (0.01, 1), (0, 1.01)),
]
DEFAULTS: dict[type[Options], dict[str, Any]] = {
    LlamaCppOptions: {
        "n_ctx": 8192, "n_parallel": 1, "cache_ram_mib": 0, "cache_idle_slots": True, "n_cache_reuse": 0,
        "n_ctx_checkpoints": 32, "checkpoint_min_step": 8192, "swa_full": False, "n_batch": 2048, "n_ubatch": 512,
        "slot_prompt_similarity": 0.1, "type_k": "auto", "type_v": "auto", "kv_unified": False, "flash_attn": "off",
        "verbosity": 4,
    },
    LlamaCppPythonOptions: {
        "n_ctx": 8192, "n_batch": 512, "n_ubatch": 512, "swa_full": True, "type_k": "auto", "type_v": "auto",
        "flash_attn": False,
    },
    ReferenceOptions: {
        "law_options": {}, "pool_tokens": 16384, "pool_states": 64, "backend": "fused", "prefill_grid": 256,
        "max_num_batched_tokens": 2048, "max_num_seqs": 16, "compute_dtype": "auto", "num_speculative_tokens": 0,
        "trace_hand_over": False,
    },
    SglangOptions: {
        "page_size": 1, "max_total_tokens": 32768, "disable_radix_cache": False, "disable_overlap_schedule": True,
        "sleep_on_idle": True,
    },
    SglangLookupOptions: {"groups": ("full",)},
    VllmOptions: {
        "enable_prefix_caching": True, "max_num_batched_tokens": 2048, "max_num_seqs": 8, "enforce_eager": True,
        "seed": 0,
    },
    VllmLookupOptions: {
        "groups": ("full",), "block_size": 16, "max_num_batched_tokens": 8192, "max_model_len": 131072,
        "max_num_seqs": 16, "enable_prefix_caching": True, "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0, "prefix_caching_hash_algo": "sha256",
        "enable_mamba_fine_grained_prefix_cache": False, "enable_mamba_shared_prefix_checkpoint": False,
        "swa_bounded_replay": True, "disable_hybrid_kv_cache_manager": False, "method": "mtp",
        "num_speculative_tokens": 0, "disable_eagle_block_drop": False, "disable_lookahead_block_hashes": False,
    },
}  # fmt: skip
"""A default that changes makes earlier results incomparable; the others are None and leave the choice to the engine."""


@pytest.mark.parametrize(
    ("options", "name", "least"),
    [(options, name, least) for options, all_ in LEAST.items() for least, names in all_.items() for name in names],
)
def test_numbers_begin_where_the_engine_takes_them(options: type[Options], name: str, least: int) -> None:
    assert getattr(options.model_validate({name: least}), name) == least
    with pytest.raises(ValidationError, match="greater than"):
        options.model_validate({name: least - 1})


@pytest.mark.parametrize(("options", "name", "taken", "refused"), SHARES)
def test_numbers_that_end(
    options: type[Options], name: str, taken: tuple[float, ...], refused: tuple[float, ...]
) -> None:
    assert [getattr(options.model_validate({name: value}), name) for value in taken] == list(taken)
    for value in refused:
        with pytest.raises(ValidationError, match="than"):
            options.model_validate({name: value})


@pytest.mark.parametrize("options", DEFAULTS)
def test_defaults(options: type[Options]) -> None:
    assert options().model_dump(exclude_none=True) == DEFAULTS[options]


def test_a_step_of_the_reference_engine_fits_every_decode_and_one_prefill_call() -> None:
    fits = {"prefill_grid": 64, "max_num_seqs": 4, "max_num_batched_tokens": 68}
    assert ReferenceOptions.model_validate(fits).max_num_batched_tokens == 68
    with pytest.raises(ValidationError, match="prefill_grid \\+ max_num_seqs = 68"):
        ReferenceOptions.model_validate(fits | {"max_num_batched_tokens": 67})


def test_sglang_has_one_page_size() -> None:
    def given(**options: Any) -> dict[str, Any]:
        return SglangLookupOptions.model_validate(options).given()

    assert given() == {"groups": ["full"]}
    assert given(page_size=None, max_total_tokens=64) == {"groups": ["full"], "max_total_tokens": 64}
    assert given(groups=("full:16", "gdn"))["page_size"] == 16
    assert given(groups=("full:16", "gdn:16"), page_size=16)["page_size"] == 16
    assert given(groups=("full",), page_size=1)["page_size"] == 1
    for options in ({"groups": ("full:16",), "page_size": 8}, {"groups": ("full:16", "swa:8:64")}):
        with pytest.raises(UsageError, match="page sizes 8, 16"):
            given(**options)
