"""Names and shapes of a checkpoint's tensors as the HF classes of transformers 5.19 expect them, from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
"""config.json of an HF checkpoint."""
Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(config: Config) -> Shapes:
    """Shape of every tensor, rows (outputs) first; knows "llama", "qwen3", "gemma3_text" and "qwen3_5_text"."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    kinds = config.get("layer_types", ["full_attention"] * config["num_hidden_layers"])
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"] == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for index, kind in enumerate(kinds):
        parts = _mlp(config) | {f"{norm}.weight": (hidden,) for norm in norms}
        parts |= _linear_attention(config) if kind == "linear_attention" else _attention(config)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in parts.items()}
    return shapes | (_drafting_head(config) if config.get("mtp_num_hidden_layers") else {})


def _drafting_head(config: Config) -> Shapes:
    """One attention layer behind a matrix that joins embedding and hidden state; names as vLLM 0.32.0 reads them."""
    hidden = config["hidden_size"]
    layer = _mlp(config) | _attention(config)
    layer |= {f"{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    shapes: Shapes = {f"mtp.{norm}.weight": (hidden,) for norm in norms} | {"mtp.fc.weight": (hidden, 2 * hidden)}
    return shapes | {f"mtp.layers.0.{name}": shape for name, shape in layer.items()}


def _mlp(config: Config) -> Shapes:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return {
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def _attention(config: Config) -> Shapes:
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    gated = config["model_type"] == "qwen3_5_text"  # q_proj carries an output gate beside the queries
    shapes: Shapes = {
        "self_attn.q_proj.weight": (queries * 2 if gated else queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
    }
    if config["model_type"] != "llama":
        shapes |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    return shapes


def _linear_attention(config: Config) -> Shapes:
    """Gated delta net."""
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    return {
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, config["linear_conv_kernel_dim"]),
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.norm.weight": (config["linear_value_head_dim"],),
        "linear_attn.out_proj.weight": (hidden, values),
    }
