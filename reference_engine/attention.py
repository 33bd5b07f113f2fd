"""Prefix-extend attention: the queries of positions `[start, end)` against the keys of `[0, end)` in the pool.

The part below `start` may have been computed by another request; it is read like the rest and never written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reference_engine.kv_pool import KVPool, SlotIndex


@dataclass(frozen=True, slots=True)
class Extend:
    """One request's share of a forward call."""

    rows: slice
    """Its queries among the rows of the call."""
    keys: SlotIndex
    """Slots of positions `[0, end)`, in order."""
    mask: Tensor | None
    """`[queries, keys]`, 0 or -inf; None where SDPA's own causal rule or no rule gives the same."""


def extend_mask(start: int, end: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """What position `start + i` may see of `[0, end)`; None for a whole prompt and for a single query."""
    if start == 0 or end - start == 1:
        return None
    hidden = torch.full((end - start, end), -torch.inf, dtype=dtype, device=device)
    return hidden.triu_(start + 1)


def extend_attention(queries: Tensor, pool: KVPool, layer: int, extend: Extend) -> Tensor:
    """Attention of `[n, heads, head_dim]` queries; returns `[n, heads * head_dim]`."""
    keys, values = pool.read(layer, extend.keys)
    mixed = scaled_dot_product_attention(
        queries.transpose(0, 1)[None],  # [1, heads, n, head_dim]
        keys.transpose(0, 1)[None],  # [1, kv_heads, m, head_dim]
        values.transpose(0, 1)[None],
        attn_mask=extend.mask,
        is_causal=extend.mask is None and len(queries) > 1,
        enable_gqa=True,
    )
    return mixed[0].transpose(0, 1).reshape(len(queries), -1)
