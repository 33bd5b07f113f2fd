"""Options and layer groups as data -> vLLM's own configuration and layer specs.

A group of layers becomes two layers of one kind. With a drafter (MTP, EAGLE) the second layer of the first
full-attention group is the drafter's, and it comes last, where vLLM looks for it. All pages are padded to
one size, so that block sizes stay as asked: vLLM raises the block size of layers with small pages.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from vllm import __version__ as version
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MambaSpec, SlidingWindowSpec

LAYERS_PER_GROUP = 2
VOCAB_SIZE = 1 << 18
"""Larger than any real vocabulary; nothing is embedded."""
CONTEXT_LEN = 1 << 20
BLOCKS = 1 << 16
"""Blocks where no option bounds the pool."""
DEFAULTS: dict[str, Any] = {
    "block_size": 16,
    "max_num_batched_tokens": 8192,
    "max_model_len": 1 << 17,
    "max_num_seqs": 16,
    "enable_prefix_caching": True,
}
SPECULATION = ("method", "num_speculative_tokens", "disable_eagle_block_drop", "disable_lookahead_block_hashes")
RETENTION = "prefix_cache_retention_interval"
RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
"""The same setting in 0.23 and 0.26; unset: every boundary."""
BYTES_PER_TOKEN = 2 * 16 * 2
"""Keys and values, one head of 16 dimensions, bfloat16."""

_DENSE = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 4, "vocab_size": VOCAB_SIZE, "max_position_embeddings": CONTEXT_LEN, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip
_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_DENSE},
    "hybrid": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", **_DENSE, **_EXPERTS,
        "full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25,
        "num_nextn_predict_layers": 1,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    },
    "dense_mtp": {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", **_DENSE, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 1,
    },
    "eagle": {"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama", **_DENSE, "num_hidden_layers": 1},
}  # fmt: skip
"""Configurations only, read by vLLM's checks; which layers there are is the groups' business."""


class Refused(Exception):
    """This version cannot serve this configuration."""


@dataclasses.dataclass(frozen=True)
class Group:
    """One group of layers, as `vocabulary.groups` writes it."""

    kind: str
    block: int
    window: int | None

    def __str__(self) -> str:
        return f"{self.kind}:{self.block}" if self.window is None else f"{self.kind}:{self.block}:{self.window}"


def read_group(text: str, block_size: int) -> Group:
    """Parse a group; where it names no block, `block_size` is its block."""
    kind, *numbers = text.split(":")
    values = [int(n) for n in numbers]
    if kind == "swa":
        return Group(kind, values[0] if len(values) == 2 else block_size, values[-1])
    return Group(kind, values[0] if values else block_size, None)


def configure(options: dict[str, Any], folder: Path) -> tuple[Any, list[Group]]:
    """vLLM's configuration and the groups; Refused names the option and the version."""
    given = DEFAULTS | options
    if given.get("num_gpu_blocks_override") is not None and "max_model_len" not in options:
        given["max_model_len"] = -1  # as long as the pool allows
    groups = [read_group(text, given["block_size"]) for text in given.pop("groups", ["full"])]
    given["block_size"] = next((g.block for g in groups if g.kind != "gdn"), groups[0].block)
    speculation = {name: given.pop(name) for name in SPECULATION if name in given}
    _retention(given)
    unknown = sorted(set(given) - {field.name for field in dataclasses.fields(EngineArgs)})
    if unknown:
        raise Refused(f"vLLM {version} has no option {', '.join(unknown)}")
    hybrid = any(group.kind == "gdn" for group in groups)
    given.setdefault("num_gpu_blocks_override", BLOCKS)
    if hybrid:
        given.setdefault("mamba_cache_mode", "align")
    method = speculation.get("method", "mtp") if speculation.get("num_speculative_tokens") else None
    model = "hybrid" if hybrid else "dense_mtp" if method == "mtp" else "dense"
    try:
        config = EngineArgs(
            model=_model_folder(model, folder),
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            load_format="dummy",
            async_scheduling=False,
            speculative_config=None if method is None else _speculation(method, speculation, folder),
            **given,
        ).create_engine_config(UsageContext.LLM_CLASS)
    except (ValueError, NotImplementedError, AssertionError) as error:
        raise Refused(f"vLLM {version}: {_first_lines(error)}") from error
    if hybrid:
        config.cache_config.mamba_block_size = next(g.block for g in groups if g.kind == "gdn")
    return config, groups


def layer_specs(config: Any, groups: list[Group]) -> dict[str, Any]:
    """`{layer name: KVCacheSpec}` in the order in which vLLM would register the layers."""
    page = max(BYTES_PER_TOKEN * group.block for group in groups)
    drafting = config.speculative_config is not None and config.speculative_config.use_eagle()
    drafter = next((i for i, group in enumerate(groups) if group.kind == "full"), None) if drafting else None
    if drafting and drafter is None:
        raise Refused("a drafter's layer needs a full-attention group to join; add one to `groups`")
    layers: dict[str, Any] = {}
    for index, group in enumerate(groups):
        for _ in range(LAYERS_PER_GROUP - (index == drafter)):
            suffix = "linear_attn" if group.kind == "gdn" else "self_attn.attn"
            layers[f"model.layers.{len(layers)}.{suffix}"] = _spec(group, config, page)
    if drafter is not None:
        layers[f"model.layers.{len(layers)}.self_attn.attn"] = _of_drafter(_spec(groups[drafter], config, page))
    return layers


def built_groups(kv_cache_config: KVCacheConfig, asked: list[Group]) -> list[int]:
    """Index of vLLM's group for each asked one; Refused when vLLM grouped the layers otherwise."""
    built = [_built(each.kv_cache_spec) for each in kv_cache_config.kv_cache_groups]
    if Counter(built) != Counter(map(str, asked)):
        raise Refused(
            f"vLLM {version} groups these layers as {', '.join(built)}, not as {', '.join(map(str, asked))} asked for"
        )
    left = list(enumerate(built))
    order = []
    for group in asked:
        found = next(item for item in left if item[1] == str(group))
        left.remove(found)
        order.append(found[0])
    return order


def _built(spec: Any) -> str:
    spec = next(iter(spec.kv_cache_specs.values())) if hasattr(spec, "kv_cache_specs") else spec
    if isinstance(spec, MambaSpec):
        return str(Group("gdn", spec.block_size, None))
    if isinstance(spec, SlidingWindowSpec):
        return str(Group("swa", spec.block_size, spec.sliding_window))
    return str(Group("full", spec.block_size, None))


def _spec(group: Group, config: Any, page: int) -> Any:
    padded = page if page != BYTES_PER_TOKEN * group.block else None
    heads = {"num_kv_heads": 1, "head_size": 16, "dtype": torch.bfloat16, "page_size_padded": padded}
    if group.kind == "full":
        return FullAttentionSpec(block_size=group.block, **heads)
    if group.kind == "swa":
        return SlidingWindowSpec(block_size=group.block, sliding_window=group.window, **heads)
    spec = config.speculative_config
    return MambaSpec(
        block_size=group.block,
        shapes=((1, 8),),
        dtypes=(torch.bfloat16,),
        page_size_padded=page,
        mamba_cache_mode=config.cache_config.mamba_cache_mode,
        num_speculative_blocks=0 if spec is None else spec.num_speculative_tokens,
    )


def _of_drafter(spec: Any) -> Any:
    """0.33 marks a drafter's layers (v1/worker/gpu_model_runner.py), and only their group gives a block back."""
    marked = any(field.name == "is_draft" for field in dataclasses.fields(spec))
    return dataclasses.replace(spec, is_draft=True) if marked else spec


def _retention(given: dict[str, Any]) -> None:
    """0.23 and 0.26 read the retention interval from the environment."""
    import vllm.envs

    os.environ.pop(RETENTION_VARIABLE, None)
    if RETENTION not in given or any(field.name == RETENTION for field in dataclasses.fields(EngineArgs)):
        return
    if RETENTION_VARIABLE not in vllm.envs.environment_variables:
        raise Refused(f"vLLM {version} has no option {RETENTION}")
    value = given.pop(RETENTION)
    if value is not None:
        os.environ[RETENTION_VARIABLE] = str(value)


def _speculation(method: str, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    if unknown := sorted(set(options) - known):
        raise Refused(f"vLLM {version} has no option {', '.join(unknown)}")
    more: dict[str, Any] = {"method": method}
    if method in ("eagle", "eagle3"):
        more["model"] = _model_folder("eagle", folder)
    elif method == "draft_model":
        more["model"] = _model_folder("dense", folder)
    elif method == "ngram":
        more |= {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return options | more


def _model_folder(name: str, folder: Path) -> str:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(MODELS[name]), encoding="utf-8")
    return str(path)


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:4]) or type(error).__name__
