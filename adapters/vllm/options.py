"""vLLM's options as hitparity takes them, and the engine arguments they become.

Names are vLLM's own engine arguments (0.32.0). `None` leaves the choice to vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from adapters.base import EngineSpec, Options
from checkpoints import Checkpoint

CPU_KV_CACHE_BYTES = 512 << 20


class VllmOptions(Options):
    """Engine arguments that matter to a prefix cache."""

    block_size: int | None = Field(default=None, ge=1)
    """Tokens per KV block. vLLM's choice on a CPU is 128; its CPU attention takes multiples of 32 only."""
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str | None = None
    prefix_match_unit: int | None = Field(default=None, ge=1)
    prefix_cache_retention_interval: int | Literal["None"] | None = None
    """Tokens between retained window and state checkpoints; "None" is vLLM's None: retain densely."""
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    """Most tokens per scheduler step: the prefill chunk. Fixed: vLLM chooses differently in a server and in process."""
    max_num_seqs: int = Field(default=8, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    """None: the checkpoint's own."""
    num_gpu_blocks_override: int | None = Field(default=None, ge=2)
    """Blocks in the pool, on a CPU too; one of them is never handed out."""
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)
    """Size of the pool. On a CPU None means 512 MiB here: vLLM would ask for 92 % of the machine's memory."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_dtype: str | None = None
    mamba_cache_mode: str | None = None
    mamba_block_size: int | None = Field(default=None, ge=1)
    enforce_eager: bool = True
    """Compiling takes minutes on a CPU."""
    async_scheduling: bool | None = None
    speculative_config: dict[str, Any] | None = None
    seed: int = 0


def engine_arguments(options: VllmOptions, spec: EngineSpec, model: Checkpoint) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` for this configuration, JSON values only.

    The dtype is always named: vLLM's "auto" would serve a float32 checkpoint in half precision.
    """
    arguments = {
        "model": str(model.directory.absolute()),
        "dtype": dtype_for(spec, model),
        **options.model_dump(exclude_none=True),
    }
    if spec.device == "cpu":
        arguments.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
    return arguments


def dtype_for(spec: EngineSpec, model: Checkpoint) -> str:
    """The checkpoint's dtype for "auto", but bfloat16 where vLLM's CPU kernels take nothing else (`notes_for`)."""
    if spec.dtype != "auto":
        return spec.dtype
    return "bfloat16" if _needs_bfloat16(spec, model) else model.dtype


def notes_for(spec: EngineSpec, model: Checkpoint) -> tuple[str, ...]:
    """What a reader of the results has to know about this configuration."""
    if spec.dtype == "auto" and _needs_bfloat16(spec, model) and model.dtype != "bfloat16":
        return (f"{model.dtype} weights run in bfloat16: vLLM's CPU kernels for gated delta nets take nothing else",)
    return ()


def command_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments as flags of vLLM's server."""
    flags = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def _needs_bfloat16(spec: EngineSpec, model: Checkpoint) -> bool:
    return spec.device == "cpu" and model.architecture.startswith("qwen3_5")
