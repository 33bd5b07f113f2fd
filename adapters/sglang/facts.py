"""EngineFacts from SGLang's GET /server_info and /model_info."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.base import EngineSpec
from checkpoints import Checkpoint
from vocabulary.engine import EngineFacts
from vocabulary.errors import EngineUnavailable

REPORTED = (
    "version",
    "page_size",
    "max_total_num_tokens",
    "max_req_input_len",
    "context_length",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "attention_backend",
    "kv_cache_dtype",
    "mem_fraction_static",
    "disable_radix_cache",
    "radix_eviction_policy",
    "schedule_policy",
    "disable_overlap_schedule",
    "enable_hierarchical_cache",
    "speculative_algorithm",
    "tp_size",
)
HYBRID = (
    "swa_full_tokens_ratio",
    "mamba_radix_cache_strategy",
    "mamba_track_interval",
    "max_mamba_cache_size",
    "mamba_max_states_per_path",
)
"""Reported by 0.5.23 for every model; only the law of hybrids needs them."""
GROUPS = {"llama": ("full",), "qwen3": ("full",), "gemma3_text": ("full",), "qwen3_5_text": ("full", "gdn")}


def facts_of(
    info: Mapping[str, Any], spec: EngineSpec, model: Checkpoint, model_info: Mapping[str, Any]
) -> EngineFacts:
    """What the server says about itself, without the law.

    Raises EngineUnavailable when it runs another model or device than the experiment names, or answers in
    a form that the adapter cannot read.
    """
    try:
        options = {name: info[name] for name in REPORTED} | {name: info[name] for name in HYBRID if name in info}
        device, dtype, model_type = str(info["device"]), str(info["dtype"]), str(model_info["model_type"])
        page_size, context_len = int(options["page_size"]), int(options["max_req_input_len"])
        if info["incremental_streaming_output"]:
            raise EngineUnavailable(
                "sglang: the server streams output ids one by one; start it without --incremental-streaming-output"
            )
    except KeyError as error:
        raise EngineUnavailable(
            f"sglang: /server_info and /model_info have no {error}; hitparity knows the form of 0.5.23, "
            f"this is {info.get('version')}"
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise EngineUnavailable(f"sglang: /server_info is not of the form of 0.5.23: {error}") from None
    if model_type != model.architecture:
        raise EngineUnavailable(
            f"sglang: the server runs a {model_type!r} model, the experiment's {model.name} is {model.architecture!r}"
        )
    if device != spec.device:
        raise EngineUnavailable(f"sglang: the server runs on {device!r}, the experiment asks for {spec.device!r}")
    return EngineFacts(
        engine="sglang",
        version=str(options["version"]),
        mode=spec.mode,
        device=device,
        dtype=dtype,
        granule=page_size,
        groups=GROUPS.get(model.architecture, (model.architecture,)),
        # One token below it is the longest prompt that SGLang takes; a few more output tokens would fit.
        context_len=context_len,
        vocab_size=model.vocab_size,
        options=options,
        can_salt=True,
        notes=tuple(_notes(options, model)),
    )


def _notes(options: Mapping[str, Any], model: Checkpoint) -> list[str]:
    notes = []
    if options["attention_backend"] == "torch_native":
        notes.append(
            "torch_native attends from every position, reused ones too, and drops those rows: "
            "a hit saves projections and MLP, not attention"
        )
    if model.architecture == "gemma3_text":
        notes.append("SGLang keeps full KV for the sliding-window layers of Gemma 3")
    return notes
