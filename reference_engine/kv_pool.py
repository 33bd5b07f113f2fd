"""Keys and values of every cached position, addressed by slot; which slot belongs to whom is the law's business."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reference_engine.config import ModelConfig
from reference_engine.laws.base import Slots

SlotIndex = slice | Tensor
"""Slots to read or write: a slice where they are consecutive, else int64 `[n]` on the pool's device."""


class KVPool:
    """Two pools `[layers, pool_tokens, kv_heads, head_dim]` in the compute type.

    Not in the weights' type: widening 1,038 bf16 keys of one SmolLM2 layer took 0.10 ms where a view of fp32 ones is
    free, and 0.16 ms where gathering fp32 ones took 0.13 (AVX2, two threads).
    """

    def __init__(self, config: ModelConfig, pool_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.layers, pool_tokens, config.kv_heads, config.head_dim)
        # Zeros written by hand: memory the system only promised would be mapped inside the first prefills' times.
        self.keys = torch.empty(shape, dtype=dtype, device=device).fill_(0)
        self.values = torch.empty(shape, dtype=dtype, device=device).fill_(0)

    @property
    def pool_tokens(self) -> int:
        """Slots of the pool."""
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of both pools."""
        return self.keys.nbytes + self.values.nbytes

    def index(self, slots: Slots) -> SlotIndex:
        """How to address `slots`, given in the order of their positions."""
        first = int(slots[0])
        if slots[-1] - first == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
            return slice(first, first + len(slots))
        return torch.from_numpy(np.ascontiguousarray(slots)).to(self.keys.device)

    def write(self, layer: int, index: SlotIndex, keys: Tensor, values: Tensor) -> None:
        """Store `[n, kv_heads, head_dim]` keys and values of one layer."""
        self.keys[layer, index] = keys
        self.values[layer, index] = values

    def read(self, layer: int, index: SlotIndex) -> tuple[Tensor, Tensor]:
        """Keys and values `[n, kv_heads, head_dim]` of one layer: a view for a slice, else a gathered copy."""
        if isinstance(index, slice):
            return self.keys[layer, index], self.values[layer, index]
        return self.keys[layer].index_select(0, index), self.values[layer].index_select(0, index)
