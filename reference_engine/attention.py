"""Prefix-extend attention: the queries of positions `[start, end)` against the keys of `[0, end)` in the pool.

The part below `start` may have been computed by another request; it is read like the rest and never written. A
sliding-window layer reads only the window: keys from `max(0, start - window + 1)` on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

from reference_engine.backend import AttentionStep, StateStep
from reference_engine.config import ModelConfig
from reference_engine.pools import KVPool, Pool
from reference_engine.weights import AttentionWeights
from vocabulary.groups import Kind


def extend_mask(
    start: int,
    end: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    first_key: int = 0,
    window: int | None = None,
) -> Tensor | None:
    """What position `start + i` may see of `[first_key, end)`; `[end - start, end - first_key]`, 0 or -inf.

    None where SDPA's own causal rule gives the same, and for a single query that sees every key.
    """
    rows, keys, offset = end - start, end - first_key, start - first_key
    inside = window is None or keys <= window
    if inside and (offset == 0 or rows == 1):
        return None
    hidden = torch.full((rows, keys), -torch.inf, dtype=dtype, device=device).triu_(offset + 1)
    if window is not None:
        hidden += torch.full_like(hidden, -torch.inf).tril_(offset - window)
    return hidden


class Attention:
    """One layer of full or sliding-window attention, with its part of the pool."""

    def __init__(self, config: ModelConfig, weights: AttentionWeights, kind: Kind, pool: Pool, layer: int) -> None:
        assert isinstance(pool, KVPool)
        self.config, self.weights, self.pool, self.layer = config, weights, pool, layer
        self.window = config.window if kind is Kind.SWA else None

    def __call__(self, hidden: Tensor, step: AttentionStep | StateStep, *, read: bool) -> Tensor | None:
        """Store the rows' keys and values; `[n, hidden]` to `[n, hidden]`, None unless `read`."""
        assert isinstance(step, AttentionStep)
        config, weights = self.config, self.weights
        heads, rotated = config.heads, config.heads + config.kv_heads
        rows = weights.qkv(hidden).view(len(hidden), -1, config.head_dim)
        queries_keys, values = rows[:, :rotated], rows[:, rotated : rotated + config.kv_heads]
        if weights.qk_norm is not None:
            queries_keys = F.rms_norm(queries_keys, (config.head_dim,), None, config.norm_eps) * weights.qk_norm
        queries_keys = step.rotate(queries_keys)
        queries, keys = queries_keys[:, :heads], queries_keys[:, heads:]
        step.write(keys, values, self.pool, self.layer)
        if not read:
            return None
        mixed = step.attend(queries, keys, values, self.pool, self.layer, config.query_scale, self.window)
        if config.output_gate:
            mixed = mixed * rows[:, rotated + config.kv_heads :].flatten(1).sigmoid()
        return weights.out(mixed)
