"""Weights of a checkpoint, arranged for the decoder: what reads the same rows lies in one matrix.

Comments give the shapes of matrices as `[out, in]`; H heads, G kv heads, D head_dim, E hidden, F intermediate. Norms
that multiply by 1 + weight are stored with the 1.
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
from vocabulary.groups import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Full or sliding-window attention."""

    qkv: Linear  # [(H + 2G) * D, E]; with an output gate [(2H + 2G) * D, E], the gate last
    qk_norm: Tensor | None  # [H + G, D]; None: the architecture has none
    out: Linear  # [E, H * D]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaWeights:
    """Gated delta net; K and V are all key and all value heads' elements, N the number of value heads."""

    inputs: Linear  # [2K + 2V + 2N, E]: queries, keys, values, output gate, update strength, decay
    conv: Tensor  # [width, 2K + V]
    rate: Tensor  # [N] fp32: how fast a value head forgets
    dt_bias: Tensor  # [N] fp32
    norm: Tensor  # [value_dim]
    out: Linear  # [E, V]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer: a mixer of tokens, then an MLP."""

    input_norm: Tensor  # [E]
    mixer: AttentionWeights | DeltaWeights
    mixer_norm: Tensor | None  # [E], of the mixer's output (Gemma)
    mlp_norm: Tensor  # [E]
    gate_up: Linear  # [2F, E]
    down: Linear  # [E, F]
    mlp_output_norm: Tensor | None  # [E] (Gemma)


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpWeights:
    """The drafting head of Qwen3-Next and Qwen3.5; embedding and output matrix are the model's."""

    embedding_norm: Tensor  # [E]
    hidden_norm: Tensor  # [E]
    join: Linear  # [E, 2E]: embedding first
    layer: LayerWeights
    norm: Tensor  # [E]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of one model, in the compute type."""

    embedding: Tensor  # [vocab, E]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [E]
    head: Linear  # [vocab, E]; the embedding where the config ties them
    mtp: MtpWeights | None


def load_weights(directory: Path, config: ModelConfig, types: ComputeType, device: torch.device) -> Weights:
    """Read `model.safetensors`, rounding to `types.weights` and holding in `types.compute`.

    Raises UsageError when a tensor is missing, has another shape than `config` says, or the file is damaged.
    """
    path = directory / "model.safetensors"
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); make it again with `hitparity model make`") from None
    source = _Source(path, stored, config, types, device)
    hidden = config.hidden
    embedding = source.take("model.embed_tokens.weight", config.vocab_size, hidden)
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(source, f"model.layers.{at}", kind) for at, kind in enumerate(config.layer_kinds)),
        norm=source.norm("model.norm.weight", hidden),
        head=Linear(embedding if config.tied_head else source.take("lm_head.weight", config.vocab_size, hidden)),
        mtp=_mtp(source) if config.mtp else None,
    )


@dataclass(frozen=True, slots=True)
class _Source:
    path: Path
    stored: Mapping[str, Tensor]
    config: ModelConfig
    types: ComputeType
    device: torch.device

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor in the compute type or, where its precision decides more than its size, in another."""
        tensor = self.stored.get(name)
        if tensor is None:
            raise UsageError(f"{self.path}: tensor {name} is missing; make the model folder again")
        if tensor.shape != shape:
            raise UsageError(f"{self.path}: {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        return tensor.to(self.types.weights).to(device=self.device, dtype=dtype or self.types.compute)

    def norm(self, name: str, size: int) -> Tensor:
        weight = self.take(name, size, dtype=torch.float32)
        return (weight + 1 if self.config.norm_adds_one else weight).to(self.types.compute)

    def joined(self, *parts: Tensor) -> Linear:
        return Linear(torch.cat(parts))


def _layer(source: _Source, at: str, kind: Kind) -> LayerWeights:
    config = source.config
    hidden, inner, gemma = config.hidden, config.intermediate, config.output_norms
    after_mixer = source.norm(f"{at}.post_attention_layernorm.weight", hidden)
    return LayerWeights(
        input_norm=source.norm(f"{at}.input_layernorm.weight", hidden),
        mixer=_delta(source, f"{at}.linear_attn") if kind is Kind.GDN else _attention(source, f"{at}.self_attn"),
        mixer_norm=after_mixer if gemma else None,
        mlp_norm=source.norm(f"{at}.pre_feedforward_layernorm.weight", hidden) if gemma else after_mixer,
        gate_up=source.joined(
            source.take(f"{at}.mlp.gate_proj.weight", inner, hidden),
            source.take(f"{at}.mlp.up_proj.weight", inner, hidden),
        ),
        down=Linear(source.take(f"{at}.mlp.down_proj.weight", hidden, inner)),
        mlp_output_norm=source.norm(f"{at}.post_feedforward_layernorm.weight", hidden) if gemma else None,
    )


def _attention(source: _Source, at: str) -> AttentionWeights:
    config = source.config
    hidden, heads, kv_heads, head_dim = config.hidden, config.heads, config.kv_heads, config.head_dim
    width, kv_width = heads * head_dim, kv_heads * head_dim
    queries = source.take(f"{at}.q_proj.weight", width * (2 if config.output_gate else 1), hidden)
    gate = []
    if config.output_gate:  # each head's queries and gate lie side by side
        paired = queries.view(heads, 2, head_dim, hidden)
        queries, gate = paired[:, 0].reshape(width, hidden), [paired[:, 1].reshape(width, hidden)]
    keys, values = (source.take(f"{at}.{name}.weight", kv_width, hidden) for name in ("k_proj", "v_proj"))
    return AttentionWeights(
        qkv=source.joined(queries, keys, values, *gate),
        qk_norm=torch.cat(
            [
                source.norm(f"{at}.q_norm.weight", head_dim).expand(heads, -1),
                source.norm(f"{at}.k_norm.weight", head_dim).expand(kv_heads, -1),
            ]
        )
        if config.qk_norm
        else None,
        out=Linear(source.take(f"{at}.o_proj.weight", hidden, width)),
    )


def _delta(source: _Source, at: str) -> DeltaWeights:
    sizes, hidden = source.config.delta, source.config.hidden
    assert sizes is not None
    heads, values = sizes.value_heads, sizes.value_heads * sizes.value_dim
    packed = source.config.model_type == "qwen3_next"
    log_rate, dt_bias = (source.take(f"{at}.{name}", heads, dtype=torch.float32) for name in ("A_log", "dt_bias"))
    conv = source.take(f"{at}.conv1d.weight", sizes.channels, 1, sizes.conv_width)
    return DeltaWeights(
        inputs=_packed_inputs(source, at) if packed else _separate_inputs(source, at),
        conv=conv[:, 0].T.contiguous(),
        rate=log_rate.exp(),
        dt_bias=dt_bias,
        norm=source.take(f"{at}.norm.weight", sizes.value_dim),
        out=Linear(source.take(f"{at}.out_proj.weight", hidden, values)),
    )


def _separate_inputs(source: _Source, at: str) -> Linear:
    """Qwen3.5: one matrix per purpose."""
    sizes, hidden = source.config.delta, source.config.hidden
    assert sizes is not None
    return source.joined(
        source.take(f"{at}.in_proj_qkv.weight", sizes.channels, hidden),
        source.take(f"{at}.in_proj_z.weight", sizes.value_heads * sizes.value_dim, hidden),
        source.take(f"{at}.in_proj_b.weight", sizes.value_heads, hidden),
        source.take(f"{at}.in_proj_a.weight", sizes.value_heads, hidden),
    )


def _packed_inputs(source: _Source, at: str) -> Linear:
    """Qwen3-Next: two matrices, in each the rows of one key head and its value heads together."""
    sizes, hidden = source.config.delta, source.config.hidden
    assert sizes is not None
    keys, group = sizes.key_heads, sizes.value_heads // sizes.key_heads
    wide, narrow = [sizes.key_dim] * 2 + [group * sizes.value_dim] * 2, [group, group]
    qkvz = source.take(f"{at}.in_proj_qkvz.weight", keys * sum(wide), hidden).view(keys, -1, hidden)
    ba = source.take(f"{at}.in_proj_ba.weight", keys * sum(narrow), hidden).view(keys, -1, hidden)
    parts = [*torch.split(qkvz, wide, dim=1), *torch.split(ba, narrow, dim=1)]
    return source.joined(*(part.reshape(-1, hidden) for part in parts))


def _mtp(source: _Source) -> MtpWeights:
    hidden = source.config.hidden
    return MtpWeights(
        embedding_norm=source.norm("mtp.pre_fc_norm_embedding.weight", hidden),
        hidden_norm=source.norm("mtp.pre_fc_norm_hidden.weight", hidden),
        join=Linear(source.take("mtp.fc.weight", hidden, 2 * hidden)),
        layer=_layer(source, "mtp.layers.0", Kind.FULL),
        norm=source.norm("mtp.norm.weight", hidden),
    )
