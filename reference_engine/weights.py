"""Weights of a checkpoint, arranged for the decoder: q, k, v in one matrix, gate and up in another.

Comments give the shapes of matrices as `[out, in]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from reference_engine.compute import ComputeType
from reference_engine.config import ModelConfig
from reference_engine.linear import Linear
from vocabulary.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer; H heads, G kv heads, D head_dim, E hidden, F intermediate."""

    input_norm: Tensor  # [E]
    qkv: Linear  # [(H + 2G) * D, E]
    qk_norm: Tensor | None  # [H + G, D]; None: the architecture has none
    out: Linear  # [E, H * D]
    post_norm: Tensor  # [E]
    gate_up: Linear  # [2F, E]
    down: Linear  # [E, F]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of one model, in the compute type."""

    embedding: Tensor  # [vocab, E]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [E]
    head: Linear  # [vocab, E]; the embedding where the config ties them


def load_weights(directory: Path, config: ModelConfig, types: ComputeType, device: torch.device) -> Weights:
    """Read `model.safetensors`, rounding to `types.weights` and holding in `types.compute`.

    Raises UsageError when a tensor is missing, has another shape than `config` says, or the file is damaged.
    """
    path = directory / "model.safetensors"
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); make it again with `hitparity model make`") from None
    source = _Source(path, stored, types, device)
    width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, intermediate = config.hidden, config.intermediate

    def layer(index: int) -> LayerWeights:
        def at(name: str, *shape: int) -> Tensor:
            return source.take(f"model.layers.{index}.{name}.weight", *shape)

        return LayerWeights(
            input_norm=at("input_layernorm", hidden),
            qkv=Linear(
                torch.cat(
                    [
                        at("self_attn.q_proj", width, hidden),
                        at("self_attn.k_proj", kv_width, hidden),
                        at("self_attn.v_proj", kv_width, hidden),
                    ]
                )
            ),
            qk_norm=torch.cat(
                [
                    at("self_attn.q_norm", config.head_dim).expand(config.heads, -1),
                    at("self_attn.k_norm", config.head_dim).expand(config.kv_heads, -1),
                ]
            )
            if config.qk_norm
            else None,
            out=Linear(at("self_attn.o_proj", hidden, width)),
            post_norm=at("post_attention_layernorm", hidden),
            gate_up=Linear(
                torch.cat([at("mlp.gate_proj", intermediate, hidden), at("mlp.up_proj", intermediate, hidden)])
            ),
            down=Linear(at("mlp.down_proj", hidden, intermediate)),
        )

    embedding = source.take("model.embed_tokens.weight", config.vocab_size, hidden)
    return Weights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(config.layers)),
        norm=source.take("model.norm.weight", hidden),
        head=Linear(embedding if config.tied_head else source.take("lm_head.weight", config.vocab_size, hidden)),
    )


@dataclass(frozen=True, slots=True)
class _Source:
    path: Path
    stored: Mapping[str, Tensor]
    types: ComputeType
    device: torch.device

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self.stored.get(name)
        if tensor is None:
            raise UsageError(f"{self.path}: tensor {name} is missing; make the model folder again")
        if tensor.shape != shape:
            raise UsageError(f"{self.path}: {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        return tensor.to(self.types.weights).to(device=self.device, dtype=self.types.compute)
