"""The kernels as one interface, and who computes them: chosen by name, never by what happens to work.

torch    the reference, on any device
triton   the kernels of source/ (CUDA, Ascend, and Triton's interpreter on the CPU)
npu      attention by torch_npu's own operators, everything else by Triton (Ascend only)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from reference_engine.kernels import attention, conv1d, delta, pool, rotary
from reference_engine.kernels.delta import DeltaRows
from reference_engine.kernels.launch import Launch, launch_triton
from reference_engine.kernels.shapes import (
    DecodeBatch,
    ExtendBatch,
    KernelDoesNotCover,
    LayerPool,
    StateBatch,
    require,
)
from reference_engine.kernels.targets import ASCEND_A2, CUDA_SM90, Target
from vocabulary.errors import UsageError

Backend = Literal["torch", "triton", "npu"]
BACKENDS: tuple[Backend, ...] = ("torch", "triton", "npu")


class Kernels(Protocol):
    """The operations. Each raises KernelDoesNotCover for operands it does not compute."""

    def write(self, keys: Tensor, values: Tensor, layer: LayerPool, slots: Tensor) -> None:
        """Store keys and values `[n, kv_heads, head_dim]` in the slots `[n]` int32."""

    def copy_blocks(self, keys: Tensor, values: Tensor, page: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (from, to) in all layers of the pools `[layers, pool_tokens, kv_heads, head_dim]`."""

    def rotate(self, rows: Tensor, slots: Tensor | None, angles: Tensor, cosine: Tensor, sine: Tensor) -> None:
        """Rotate in place.

        Task i turns `rows[slots[i]]` (`rows[i]` without slots) by row `angles[i]` of the tables
        `[turns, rotary_dim / 2]`: with a table by position and new rows it is the rotary embedding, with a table of
        distances and a layer's cached keys it is the shift.
        """

    def extend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        layer: LayerPool,
        batch: ExtendBatch,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Attention of packed rows over their cached and their new keys; `[rows, heads, head_dim]`."""

    def decode(self, queries: Tensor, layer: LayerPool, batch: DecodeBatch, scale: float, window: int | None) -> Tensor:
        """Attention of one query per sequence over keys in the pool, its own included; `[n, heads, head_dim]`."""

    def conv1d(self, rows: Tensor, weight: Tensor, states: Tensor, batch: StateBatch) -> Tensor:
        """SiLU of the causal convolution, `[rows, channels]`; stores states."""

    def delta_token(self, operands: DeltaRows, batch: StateBatch) -> Tensor:
        """Gated delta rule token by token, `[rows, value_heads, value_dim]`; stores states after any token."""

    def delta_chunk(self, operands: DeltaRows, batch: StateBatch) -> Tensor:
        """The same in chunks; stores states at multiples of the chunk length and at a sequence's end."""


class TorchKernels:
    """The reference: slow, obvious, on any device."""

    def write(self, keys: Tensor, values: Tensor, layer: LayerPool, slots: Tensor) -> None:
        """As `Kernels.write`."""
        pool.check_write(keys, values, layer, slots)
        pool.write_reference(keys, values, layer, slots)

    def copy_blocks(self, keys: Tensor, values: Tensor, page: int, pairs: Sequence[tuple[int, int]]) -> None:
        """As `Kernels.copy_blocks`."""
        pool.check_copy(keys, values, page, pairs)
        pool.copy_reference(keys, values, page, pairs)

    def rotate(self, rows: Tensor, slots: Tensor | None, angles: Tensor, cosine: Tensor, sine: Tensor) -> None:
        """As `Kernels.rotate`."""
        rotary.check_rotate(rows, slots, angles, cosine, sine)
        rotary.rotate_reference(rows, slots, angles, cosine, sine)

    def extend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        layer: LayerPool,
        batch: ExtendBatch,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """As `Kernels.extend`."""
        attention.check_extend(queries, keys, values, layer, batch, window)
        return attention.extend_reference(queries, keys, values, layer, batch, scale, window)

    def decode(self, queries: Tensor, layer: LayerPool, batch: DecodeBatch, scale: float, window: int | None) -> Tensor:
        """As `Kernels.decode`."""
        attention.check_decode(queries, layer, batch, window)
        return attention.decode_reference(queries, layer, batch, scale, window)

    def conv1d(self, rows: Tensor, weight: Tensor, states: Tensor, batch: StateBatch) -> Tensor:
        """As `Kernels.conv1d`."""
        conv1d.check_conv1d(rows, weight, states, batch)
        return conv1d.conv1d_reference(rows, weight, states, batch)

    def delta_token(self, operands: DeltaRows, batch: StateBatch) -> Tensor:
        """As `Kernels.delta_token`."""
        operands.check(batch)
        return delta.delta_reference(operands, batch)

    def delta_chunk(self, operands: DeltaRows, batch: StateBatch) -> Tensor:
        """As `Kernels.delta_chunk`, computed token by token."""
        operands.check(batch)
        return delta.delta_reference(operands, batch)


class TritonKernels:
    """The kernels of `source/` with a target's tiles."""

    def __init__(self, target: Target, launch: Launch = launch_triton) -> None:
        self.target, self.launch = target, launch

    def write(self, keys: Tensor, values: Tensor, layer: LayerPool, slots: Tensor) -> None:
        """As `Kernels.write`."""
        pool.check_write(keys, values, layer, slots)
        pool.write_triton(self.launch, self.target, keys, values, layer, slots)

    def copy_blocks(self, keys: Tensor, values: Tensor, page: int, pairs: Sequence[tuple[int, int]]) -> None:
        """As `Kernels.copy_blocks`."""
        pool.check_copy(keys, values, page, pairs)
        if pairs:
            pool.copy_triton(self.launch, self.target, keys, values, page, pairs)

    def rotate(self, rows: Tensor, slots: Tensor | None, angles: Tensor, cosine: Tensor, sine: Tensor) -> None:
        """As `Kernels.rotate`."""
        rotary.check_rotate(rows, slots, angles, cosine, sine)
        rotary.rotate_triton(self.launch, self.target, rows, slots, angles, cosine, sine)

    def extend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        layer: LayerPool,
        batch: ExtendBatch,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """As `Kernels.extend`. A hit that is a multiple of `hit_grid` gives the cold run's bits."""
        attention.check_extend(queries, keys, values, layer, batch, window)
        return attention.extend_triton(self.launch, self.target, queries, keys, values, layer, batch, scale, window)

    def decode(self, queries: Tensor, layer: LayerPool, batch: DecodeBatch, scale: float, window: int | None) -> Tensor:
        """As `Kernels.decode`; a sequence's result does not depend on the others."""
        attention.check_decode(queries, layer, batch, window)
        return attention.decode_triton(self.launch, self.target, queries, layer, batch, scale, window)

    def conv1d(self, rows: Tensor, weight: Tensor, states: Tensor, batch: StateBatch) -> Tensor:
        """As `Kernels.conv1d`."""
        conv1d.check_conv1d(rows, weight, states, batch)
        return conv1d.conv1d_triton(self.launch, self.target, rows, weight, states, batch)

    def delta_token(self, operands: DeltaRows, batch: StateBatch) -> Tensor:
        """As `Kernels.delta_token`."""
        operands.check(batch)
        return delta.delta_token_triton(self.launch, self.target, operands, batch)

    def delta_chunk(self, operands: DeltaRows, batch: StateBatch) -> Tensor:
        """As `Kernels.delta_chunk`."""
        operands.check(batch)
        return delta.delta_chunk_triton(self.launch, self.target, operands, batch)

    def hit_grid(self, head_dim: int, page: int) -> int:
        """Hits at multiples of this many tokens give the bits of a cold run."""
        tile = attention.tile_of(self.target.extend, head_dim, self.target)
        return self.target.keys_per_step(tile, page)


def kernels_for(backend: str, device: torch.device) -> Kernels:
    """The kernels of a backend on a device. Raises UsageError for an unknown name, KernelDoesNotCover where the two
    do not go together.
    """
    if backend == "torch":
        return TorchKernels()
    if backend == "triton":
        return TritonKernels(_target(device))
    if backend == "npu":
        from reference_engine.kernels.npu import NpuKernels

        require(device.type == "npu", f"backend npu: needs an Ascend device, not {device}")
        return NpuKernels(ASCEND_A2)
    raise UsageError(f"unknown kernel backend {backend!r}; known: {', '.join(BACKENDS)}")


def _target(device: torch.device) -> Target:
    if device.type == "cuda":
        found = torch.cuda.get_device_capability(device)
        require(found >= (9, 0), f"backend triton: compute capability {found} is below 9.0, whose tiles these are")
        return CUDA_SM90
    if device.type == "npu":
        return ASCEND_A2
    raise KernelDoesNotCover(f"backend triton: no target for device {device}; use backend torch")
