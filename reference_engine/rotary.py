"""Rotary embedding at absolute positions, and the turning of keys that moved to other positions."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_engine.config import Rope


class Rotary:
    """The angles of one kind of layer; halves of the rotated part are paired, as HF pairs them."""

    def __init__(self, rope: Rope, context_len: int, dtype: torch.dtype, device: torch.device) -> None:
        exponent = torch.arange(0, rope.dims, 2, dtype=torch.int64).float() / rope.dims
        self._frequencies = 1 / rope.theta**exponent / rope.stretch
        # Angles in fp32, as transformers computes them.
        angles = torch.arange(context_len).float()[:, None] * self._frequencies
        self.cosine, self.sine = angles.cos().to(device), angles.sin().to(device)
        """fp32 `[context_len, rotated elements / 2]`."""
        self._cos, self._sin = self.cosine.to(dtype), self.sine.to(dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine `[n, 1, rotated elements / 2]` of positions `[n]`, in the compute type."""
        return self._cos[positions, None], self._sin[positions, None]

    def turned(self, keys: Tensor, distance: int) -> Tensor:
        """Keys `[..., head_dim]` as they would be `distance` positions later (earlier where negative)."""
        angles = self._frequencies.double() * distance
        return rotate(keys, angles.cos().to(keys.device, keys.dtype), angles.sin().to(keys.device, keys.dtype))


def rotate(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first elements of `[..., head_dim]` rows; what the angles do not reach stays as it is."""
    dims = 2 * cos.shape[-1]
    first, second = rows[..., :dims].chunk(2, dim=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat(turned if dims == rows.shape[-1] else [*turned, rows[..., dims:]], dim=-1)
