"""Token mixing by torch's fused operators: scaled dot-product attention, batched products for the delta rule."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reference_engine.backend import AttentionStep, Backend, StateStep
from reference_engine.call import AttentionRows, Extend
from reference_engine.delta_rule import conv1d, gated_delta_rule
from reference_engine.kernels.delta import DeltaRows
from reference_engine.kernels.shapes import StateBatch
from reference_engine.pools import KVPool
from reference_engine.rotary import Rotary, rotate


class FusedBackend(Backend):
    """torch's operators on any device."""

    def attention(self, rows: AttentionRows, positions: Tensor, rotary: Rotary, page: int) -> AttentionStep:
        """As `Backend.attention`; slots may lie anywhere."""
        return _Attention(rows, *rotary.at(positions))

    def recurrence(self, batch: StateBatch) -> StateStep:
        """As `Backend.recurrence`."""
        return _Recurrence(batch)


class _Attention(AttentionStep):
    def __init__(self, rows: AttentionRows, cos: Tensor, sin: Tensor) -> None:
        self.rows, self.cos, self.sin = rows, cos, sin

    def rotate(self, rows: Tensor) -> Tensor:
        return rotate(rows, self.cos, self.sin)

    def write(self, keys: Tensor, values: Tensor, pool: KVPool, layer: int) -> None:
        pool.write(layer, self.rows.slots, keys, values)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, pool: KVPool, layer: int, scale: float, window: int | None
    ) -> Tensor:
        """Keys, the rows' own too, come from the pool; the window is in the masks."""
        mixed = [_attend(queries[each.rows], pool, layer, each, scale) for each in self.rows.extends]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend(queries: Tensor, pool: KVPool, layer: int, extend: Extend, scale: float) -> Tensor:
    keys, values = pool.read(layer, extend.keys)
    mixed = scaled_dot_product_attention(
        queries.transpose(0, 1)[None],  # [1, heads, n, head_dim]
        keys.transpose(0, 1)[None],  # [1, kv_heads, m, head_dim]
        values.transpose(0, 1)[None],
        attn_mask=extend.mask,
        is_causal=extend.mask is None and len(queries) > 1,
        scale=scale,
        enable_gqa=True,
    )
    return mixed[0].transpose(0, 1).reshape(len(queries), -1)


class _Recurrence(StateStep):
    def __init__(self, batch: StateBatch) -> None:
        self.batch = batch

    def conv(self, rows: Tensor, weight: Tensor, states: Tensor) -> Tensor:
        return conv1d(rows, weight, states, self.batch)

    def delta(self, operands: DeltaRows) -> Tensor:
        return gated_delta_rule(operands, self.batch)
