"""The gated delta net layer of Qwen3-Next and Qwen3.5: a short convolution, then the gated delta rule.

What it keeps is one state per sequence, valid at one position. Source of the formulas: transformers 5.19,
models/qwen3_5/modeling_qwen3_5.py; the inputs of both models are brought into one order when they are loaded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

from reference_engine.backend import AttentionStep, StateStep
from reference_engine.config import ModelConfig
from reference_engine.kernels.delta import DeltaRows
from reference_engine.pools import Pool, StatePool
from reference_engine.weights import DeltaWeights

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys."""


class DeltaNet:
    """One layer, with its part of the pool of states."""

    def __init__(self, config: ModelConfig, weights: DeltaWeights, pool: Pool, layer: int) -> None:
        assert isinstance(pool, StatePool) and config.delta is not None
        self.sizes, self.norm_eps, self.weights = config.delta, config.norm_eps, weights
        self.conv_states, self.delta_states = pool.conv[layer], pool.delta[layer]

    def __call__(self, hidden: Tensor, step: AttentionStep | StateStep, *, read: bool) -> Tensor | None:
        """Store the states the call asks for; `[n, hidden]` to `[n, hidden]`, None unless `read`."""
        assert isinstance(step, StateStep)
        sizes, weights = self.sizes, self.weights
        keys, values, heads = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim, sizes.value_heads
        mixed, gate, strength, decay = torch.split(
            weights.inputs(hidden), [sizes.channels, values, heads, heads], dim=-1
        )
        mixed = step.conv(mixed, weights.conv, self.conv_states)
        queries, key_rows = (
            _unit(rows.view(len(rows), sizes.key_heads, sizes.key_dim))
            for rows in mixed[:, : 2 * keys].chunk(2, dim=-1)
        )
        operands = DeltaRows(
            queries=queries * sizes.key_dim**-0.5,
            keys=key_rows,
            values=mixed[:, 2 * keys :].view(-1, heads, sizes.value_dim),
            gates=-weights.rate * F.softplus(decay.float() + weights.dt_bias),
            betas=strength.float().sigmoid(),
            states=self.delta_states,
        )
        made = step.delta(operands)
        if not read:
            return None
        normed = F.rms_norm(made, (sizes.value_dim,), weights.norm, self.norm_eps)
        return weights.out((normed * F.silu(gate.view(-1, heads, sizes.value_dim))).flatten(1))


def _unit(rows: Tensor) -> Tensor:
    wide = rows.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + UNIT_EPS)).to(rows.dtype)
