"""Bytes that a copied sequence takes in llama-server's RAM cache and checkpoints, from the checkpoint's config.json.

Source: `state_write` of llama.cpp's memories at the commit inside llama-cpp-python 0.3.36; the sizes that b11549 logs
agree. Headers, some hundred bytes per copy, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from checkpoints import Checkpoint

TYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
CELL_BYTES, CELL_EXTENSION_BYTES = 12, 12
"""Position and owner of a cell, and what M-RoPE adds."""
STATE_TYPE_BYTES = 4
"""Recurrent states are f32."""


def state_sizes(model: Checkpoint, options: Mapping[str, Any]) -> dict[str, int]:
    """The law's size options; empty where KV types or layers are of a kind whose size is not known here."""
    config = json.loads((model.directory / "config.json").read_text(encoding="utf-8"))
    types = [TYPE_BYTES.get(options.get(name, "")) for name in ("type_k", "type_v")]
    layers = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    if None in types:
        return {}
    heads, width = config["num_key_value_heads"], config.get("head_dim")
    width = width or config["hidden_size"] // config["num_attention_heads"]
    per_layer = sum(heads * width * size for size in types if size is not None)
    cell = CELL_BYTES + (CELL_EXTENSION_BYTES if "mrope_section" in (config.get("rope_parameters") or {}) else 0)
    sizes = {"state_bytes_per_token": per_layer * layers.count("full_attention") + cell}
    if windows := layers.count("sliding_attention"):
        sizes["window_bytes_per_token"] = per_layer * windows + cell
        if options.get("swa_full"):
            sizes["state_bytes_per_token"] += sizes["window_bytes_per_token"]
    if states := layers.count("linear_attention"):
        sizes["recurrent_state_bytes"] = states * _gated_delta_net(config)
    return sizes


def _gated_delta_net(config: Mapping[str, Any]) -> int:
    """State and convolution of one layer."""
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    convolution = (config["linear_conv_kernel_dim"] - 1) * (2 * key + value)
    elements: int = value * config["linear_key_head_dim"] + convolution
    return STATE_TYPE_BYTES * elements
