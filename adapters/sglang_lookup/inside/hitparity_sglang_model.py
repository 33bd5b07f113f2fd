"""Model folders of a bare config.json for the lookup worker: no weights, layer groups as asked.

The smallest models that SGLang 0.5.23 builds a pure, a sliding-window and a recurrent cache for. Nothing is computed,
so sizes are as small as the loader lets them be. Runs inside SGLang's own Python, so it imports nothing of ours.
"""

import json
from pathlib import Path
from typing import Any

VOCAB_SIZE = 262144
CONTEXT_LEN = 1 << 18


def write_config(folder: Path, groups: list[str]) -> None:
    """Write the config.json of a model with these layer groups; ValueError where SGLang has no such model."""
    kinds = [group.split(":")[0] for group in groups]
    if kinds == ["full"]:
        special = QWEN3
    elif kinds == ["full", "swa"]:
        special = MELLUM | {"sliding_window": int(groups[1].split(":")[-1])}
    elif kinds == ["full", "gdn"]:
        special = QWEN3_NEXT
    else:
        raise ValueError(f"layer groups {', '.join(groups)}: there are full, full with swa, full with gdn")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(COMMON | special), encoding="utf-8")


COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT_LEN,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 1,
    "attention_bias": False,
}
MELLUM: dict[str, Any] = {
    "architectures": ["MellumForCausalLM"],
    "model_type": "mellum",
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
}
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "partial_rotary_factor": 0.25,
}
