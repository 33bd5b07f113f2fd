"""One decoder layer: norm, mixer of tokens, norm, MLP."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

from reference_engine.attention import Attention
from reference_engine.backend import AttentionStep, StateStep
from reference_engine.config import ModelConfig
from reference_engine.delta_net import DeltaNet
from reference_engine.layer_groups import LayerPlace
from reference_engine.pools import Pool
from reference_engine.weights import AttentionWeights, LayerWeights
from vocabulary.groups import Kind


class Block:
    """A layer of the model with its part of its group's pool."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, kind: Kind, place: LayerPlace, pool: Pool) -> None:
        self.config, self.weights, self.group = config, weights, place.group
        self._mixer = (
            Attention(config, weights.mixer, kind, pool, place.layer)
            if isinstance(weights.mixer, AttentionWeights)
            else DeltaNet(config, weights.mixer, pool, place.layer)
        )

    def __call__(self, hidden: Tensor, step: AttentionStep | StateStep, *, read: bool = True) -> Tensor | None:
        """`[n, hidden]` to `[n, hidden]`; without `read` only what the layer keeps is computed, and None returned."""
        weights = self.weights
        mixed = self._mixer(self._norm(hidden, weights.input_norm), step, read=read)
        if mixed is None:
            return None
        hidden = hidden + (mixed if weights.mixer_norm is None else self._norm(mixed, weights.mixer_norm))
        gate, up = weights.gate_up(self._norm(hidden, weights.mlp_norm)).chunk(2, dim=-1)
        active = F.silu(gate) if self.config.activation == "silu" else F.gelu(gate, approximate="tanh")
        made = weights.down(active * up)
        return hidden + (made if weights.mlp_output_norm is None else self._norm(made, weights.mlp_output_norm))

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, (self.config.hidden,), weight, self.config.norm_eps)
