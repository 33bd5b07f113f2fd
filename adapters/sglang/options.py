"""SGLang's options as hitparity takes them, and the command line they become.

Names are SGLang's own server arguments (0.5.23). `None` leaves the choice to SGLang.
"""

from __future__ import annotations

from pydantic import Field

from adapters.base import EngineSpec, Options
from checkpoints import Checkpoint


class SglangOptions(Options):
    """Server arguments that matter to a prefix cache."""

    page_size: int = Field(default=1, ge=1)
    """Tokens per page, the unit of reuse."""
    chunked_prefill_size: int | None = None
    """Most prompt tokens per prefill step; -1: no chunking. SGLang's own choice on a CPU is 4096."""
    max_total_tokens: int | None = Field(default=32768, ge=1)
    """Tokens in the KV pool; without it the pool takes most of the machine's memory."""
    context_length: int | None = Field(default=None, ge=16)
    """None: the model's own."""
    swa_full_tokens_ratio: float | None = Field(default=None, gt=0, le=1)
    """Sliding-window pool as a share of the KV pool."""
    mamba_radix_cache_strategy: str | None = None
    mamba_track_interval: int | None = Field(default=None, ge=1)
    max_mamba_cache_size: int | None = Field(default=None, ge=1)
    """Slots for recurrent states; the law of a hybrid needs to know it."""
    mamba_max_states_per_path: int | None = None
    attention_backend: str | None = None
    """On a CPU None means "torch_native", the only backend that needs no compiled kernels there."""
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    max_running_requests: int | None = Field(default=None, ge=1)
    kv_cache_dtype: str | None = None
    schedule_policy: str | None = None
    radix_eviction_policy: str | None = None
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = True
    """Overlapped scheduling publishes a finished prompt one step later; off, equal runs are equal."""
    sleep_on_idle: bool = True
    """SGLang's own default polls for requests and so keeps a core busy while another engine is measured."""


def server_arguments(options: SglangOptions, spec: EngineSpec, model: Checkpoint, port: int) -> list[str]:
    """Arguments of `python -m sglang.launch_server` for this configuration.

    The dtype is always named: SGLang's "auto" would serve a float32 checkpoint in float16.
    """
    arguments = {
        "model_path": str(model.directory.absolute()),
        "host": "127.0.0.1",
        "port": port,
        "device": spec.device,
        "dtype": model.dtype if spec.dtype == "auto" else spec.dtype,
        "skip_tokenizer_init": True,  # token IDs in and out
        "skip_server_warmup": True,  # a warm-up request would leave its tokens in the cache
        **options.model_dump(exclude_none=True),
    }
    if spec.device == "cpu":
        arguments = {
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "disable_cuda_graph": True,
            **arguments,
        }
    command = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is not False:
            command += [flag, str(value)]
    return command
