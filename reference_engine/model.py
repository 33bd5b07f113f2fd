"""The decoder: Llama and Qwen3 blocks over a paged KV pool, at absolute positions.

Knows token IDs, positions and slots; knows nothing of requests or of laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

from reference_engine.attention import Extend, extend_attention
from reference_engine.config import ModelConfig
from reference_engine.kv_pool import KVPool, SlotIndex
from reference_engine.weights import LayerWeights, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One forward call over n rows: a prefill chunk of one request, or one token each of several."""

    ids: Tensor  # [n] int64
    positions: Tensor  # [n] int64, absolute
    slots: SlotIndex
    """Where the rows' own keys and values go."""
    extends: Sequence[Extend]


class Decoder:
    """A model with its pool."""

    def __init__(self, config: ModelConfig, weights: Weights, pool: KVPool) -> None:
        self.config, self.weights, self.pool = config, weights, pool
        self._cos, self._sin = _rotary_table(config, pool.keys.dtype, pool.keys.device)

    @torch.inference_mode()
    def forward(self, call: Call, *, want_logits: bool) -> Tensor | None:
        """Fill the pool for the call's rows; logits `[len(extends), vocab]` in fp32 for the last row of each extend."""
        eps, width = self.config.norm_eps, (self.config.hidden,)
        cos, sin = self._cos[call.positions, None], self._sin[call.positions, None]  # [n, 1, head_dim / 2]
        hidden = F.embedding(call.ids, self.weights.embedding)  # [n, hidden]
        for index, layer in enumerate(self.weights.layers):
            queries, keys, values = self._qkv(layer, F.rms_norm(hidden, width, layer.input_norm, eps), cos, sin)
            self.pool.write(index, call.slots, keys, values)
            if layer is self.weights.layers[-1] and not want_logits:
                return None  # nothing reads what the last layer would make of these rows
            mixed = [extend_attention(queries[e.rows], self.pool, index, e) for e in call.extends]
            hidden = hidden + layer.out(mixed[0] if len(mixed) == 1 else torch.cat(mixed))
            gate, up = layer.gate_up(F.rms_norm(hidden, width, layer.post_norm, eps)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        last = hidden[[extend.rows.stop - 1 for extend in call.extends]]
        return self.weights.head(F.rms_norm(last, width, self.weights.norm, eps)).float()

    def _qkv(self, layer: LayerWeights, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries `[n, heads, head_dim]`, rotated keys and values `[n, kv_heads, head_dim]`."""
        heads, kv_heads = self.config.heads, self.config.kv_heads
        qkv = layer.qkv(hidden).view(len(hidden), heads + 2 * kv_heads, self.config.head_dim)
        rotated, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.qk_norm is not None:
            rotated = F.rms_norm(rotated, (self.config.head_dim,), None, self.config.norm_eps) * layer.qk_norm
        first, second = rotated.chunk(2, dim=-1)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return rotated[:, :heads], rotated[:, heads:], values


def _rotary_table(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[context_len, head_dim / 2]`; angles in fp32, as transformers computes them."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    angles = torch.arange(config.context_len).float()[:, None] / config.rope_theta**exponent
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
