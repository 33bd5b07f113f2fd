"""Observes vLLM's scheduler, the only place that knows where a request's computation starts.

Runs inside vLLM's own Python and imports nothing of ours. A general plugin (vLLM loads those in its
engine core process too) or imported by the worker. Rows, in order:

    {"facts": {...}}      once per scheduler: what it runs with, as keyword arguments of EngineFacts
    {"id", "prompt_len", "start", "end", "preemptions"}   per step and request that still computes prompt

`id` is the engine's: the caller's id, then "-" and random characters (0.32). `[start, end)` are the
positions that the step computes, read from SchedulerOutput before the model runs.
Assumption: vLLM 0.23 to 0.33, Scheduler in vllm.v1.core.sched.scheduler; read in 0.32.0.
"""

import json
import os
from collections.abc import Callable
from typing import Any

FILE_VARIABLE = "HITPARITY_VLLM_PROBE"
Sink = Callable[[dict[str, Any]], None]


def register() -> None:
    """Entry point of the plugin: append rows to the file that the environment names, if it names one."""
    if path := os.environ.get(FILE_VARIABLE):
        file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: PTH123, SIM115 - open as long as the engine

        def write(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")

        observe(write)


def observe(sink: Sink) -> None:
    """Report every scheduler made from now on to `sink`."""
    from vllm.v1.core.sched.scheduler import Scheduler

    make, schedule = Scheduler.__init__, Scheduler.schedule

    def observed_make(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        sink({"facts": _facts(self)})

    def observed_schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = schedule(self, *args, **kwargs)
        running = output.scheduled_cached_reqs
        starts = dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
        starts |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for engine_id, count in output.num_scheduled_tokens.items():
            request, start = self.requests[engine_id], starts[engine_id]
            if start < request.num_prompt_tokens:
                sink(
                    {
                        "id": engine_id,
                        "prompt_len": request.num_prompt_tokens,
                        "start": start,
                        "end": min(start + count, request.num_prompt_tokens),
                        "preemptions": request.num_preemptions,
                    }
                )
        return output

    Scheduler.__init__, Scheduler.schedule = observed_make, observed_schedule


def _facts(scheduler: Any) -> dict[str, Any]:
    import vllm

    config = scheduler.vllm_config
    cache, model, limits = config.cache_config, config.model_config, config.scheduler_config
    groups = scheduler.kv_cache_config.kv_cache_groups
    return {
        "engine": "vllm",
        "version": vllm.__version__,
        "device": config.device_config.device_type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "granule": cache.block_size,
        "groups": sorted({_kind(group.kv_cache_spec) for group in groups}),
        "context_len": model.max_model_len,
        "vocab_size": model.get_vocab_size(),
        "can_salt": True,
        "options": {
            **_known(scheduler.kv_cache_manager.coordinator, RETENTION),
            **_known(cache, CACHE_OPTIONS),
            **_known(scheduler.kv_cache_config, ("hash_block_size", "cache_hit_alignment_tokens")),
            **_known(limits, SCHEDULER_OPTIONS),
            "enforce_eager": model.enforce_eager,
            "group_block_sizes": [group.kv_cache_spec.block_size for group in groups],
            "layer_groups": [_group(group.kv_cache_spec) for group in groups],
            "speculative_method": getattr(config.speculative_config, "method", None),
            **_known(config.speculative_config, SPECULATIVE_OPTIONS),
            **_beyond_the_rule(config, groups),
        },
    }


CACHE_OPTIONS = (
    "block_size",
    "enable_prefix_caching",
    "prefix_caching_hash_algo",
    "num_gpu_blocks",
    "prefix_cache_retention_interval",
    "prefix_match_unit",
    "swa_bounded_replay",
    "mamba_cache_mode",
    "mamba_block_size",
    "cache_dtype",
    "kv_cache_memory_bytes",
)
SCHEDULER_OPTIONS = ("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "async_scheduling", "policy")

SPECULATIVE_OPTIONS = ("num_speculative_tokens", "disable_eagle_block_drop", "disable_lookahead_block_hashes")
RETENTION = ("retention_interval",)
"""As the coordinator resolved it: an environment variable until 0.26, `prefix_cache_retention_interval` since."""


def _known(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Attributes that this version has, JSON values only."""
    values = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return {
        name: value for name, value in values.items() if value is None or isinstance(value, bool | int | float | str)
    }


def _group(spec: Any) -> str:
    """ "full:BLOCK", "swa:BLOCK:WINDOW", "gdn:BLOCK" (any recurrent state), or the class's name."""
    names = {cls.__name__ for cls in type(spec).__mro__}
    if "SlidingWindowSpec" in names:
        return f"swa:{spec.block_size}:{spec.sliding_window}"
    if "MambaSpec" in names:
        return f"gdn:{spec.block_size}"
    return f"full:{spec.block_size}" if type(spec).__name__ == "FullAttentionSpec" else type(spec).__name__


def _beyond_the_rule(config: Any, groups: Any) -> dict[str, Any]:
    """What changes hits and is no option of one name in all versions: true or more than 1 where it is in use."""
    specs = [group.kv_cache_spec for group in groups]
    cache = config.cache_config
    return {
        "kv_connector": getattr(config, "kv_transfer_config", None) is not None,
        "decode_context_parallel_size": config.parallel_config.decode_context_parallel_size,
        "prefill_checkpoints": any(getattr(spec, "num_prefill_checkpoint_blocks", 0) for spec in specs),
        "window_replay": any(getattr(spec, "prefix_replay_tokens", 0) for spec in specs),
        "state_at_junction": bool(
            getattr(cache, "enable_mamba_shared_prefix_checkpoint", False)
            or getattr(cache, "enable_mamba_fine_grained_prefix_cache", False)
        ),
    }


def _kind(spec: Any) -> str:
    """ "full", "swa:WINDOW", "gdn", or the name of the specification's class for what hitparity has no word for."""
    names = {cls.__name__ for cls in type(spec).__mro__}
    if "SlidingWindowSpec" in names:
        return f"swa:{spec.sliding_window}"
    if "MambaSpec" in names:
        return "gdn" if "gdn" in str(getattr(spec, "mamba_type", "")).lower() else "mamba"
    return "full" if type(spec).__name__ == "FullAttentionSpec" else type(spec).__name__
