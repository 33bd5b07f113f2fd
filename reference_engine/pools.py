"""The memory of a layer group, addressed by slot; which slot belongs to whom is the law's business."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reference_engine.laws.base import Slots

SlotIndex = slice | Tensor
"""Slots to read or write: a slice where they are consecutive, else int64 `[n]` on the pool's device."""


def slot_index(slots: Slots, device: torch.device) -> SlotIndex:
    """How to address `slots`, given in the order of their positions."""
    first = int(slots[0])
    if slots[-1] - first == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, first + len(slots))
    return torch.from_numpy(np.ascontiguousarray(slots)).to(device)


class KVPool:
    """Keys and values `[layers, slots, kv_heads, head_dim]` of an attention group, in the compute type.

    Not in the weights' type: widening 1,038 bf16 keys of one SmolLM2 layer took 0.10 ms where a view of fp32 ones is
    free, and 0.16 ms where gathering fp32 ones took 0.13 (AVX2, two threads).
    """

    def __init__(
        self, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, slots, kv_heads, head_dim)
        # Zeros written by hand: memory the system only promised would be mapped inside the first prefills' times.
        self.keys = torch.empty(shape, dtype=dtype, device=device).fill_(0)
        self.values = torch.empty(shape, dtype=dtype, device=device).fill_(0)

    @property
    def slots(self) -> int:
        """Slots of the pool."""
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of both pools."""
        return self.keys.nbytes + self.values.nbytes

    def write(self, layer: int, index: SlotIndex, keys: Tensor, values: Tensor) -> None:
        """Store `[n, kv_heads, head_dim]` keys and values of one layer."""
        self.keys[layer, index] = keys
        self.values[layer, index] = values

    def copy(self, source: Slots, target: Slots) -> None:
        """Copy slots in all layers; read before anything is written."""
        device = self.keys.device
        for pool in (self.keys, self.values):
            pool[:, torch.from_numpy(target).to(device)] = pool[:, torch.from_numpy(source).to(device)]

    def read(self, layer: int, index: SlotIndex) -> tuple[Tensor, Tensor]:
        """Keys and values `[n, kv_heads, head_dim]` of one layer: a view for a slice, else a gathered copy."""
        if isinstance(index, slice):
            return self.keys[layer, index], self.values[layer, index]
        return self.keys[layer].index_select(0, index), self.values[layer].index_select(0, index)


class StatePool:
    """States of a recurrent group: inputs of the convolution and the matrix of the delta rule.

    `conv` is `[layers, slots, width - 1, channels]` in the compute type, `delta` is
    `[layers, slots, value_heads, key_dim, value_dim]` in fp32.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        conv_shape: tuple[int, int],
        delta_shape: tuple[int, int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.conv = torch.zeros((layers, slots, *conv_shape), dtype=dtype, device=device)
        self.delta = torch.zeros((layers, slots, *delta_shape), dtype=torch.float32, device=device)

    @property
    def slots(self) -> int:
        """Slots of the pool."""
        return self.conv.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of both pools."""
        return self.conv.nbytes + self.delta.nbytes

    def copy(self, source: Slots, target: Slots) -> None:
        """Copy states in all layers; read before anything is written."""
        device = self.conv.device
        for pool in (self.conv, self.delta):
            pool[:, torch.from_numpy(target).to(device)] = pool[:, torch.from_numpy(source).to(device)]


Pool = KVPool | StatePool
