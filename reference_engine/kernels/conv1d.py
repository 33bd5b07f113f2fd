"""Causal depthwise convolution with SiLU, over packed sequences with a carried state: the last `width - 1` inputs."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import silu

from reference_engine.kernels.launch import Launch, programs_for
from reference_engine.kernels.shapes import KV_DTYPES, StateBatch, index_tensor, require, require_rows
from reference_engine.kernels.targets import Target


def check_conv1d(rows: Tensor, weight: Tensor, states: Tensor, batch: StateBatch) -> None:
    """Rows `[m, channels]`, weight `[width, channels]`, states `[slots, width - 1, channels]`, one type."""
    width, channels = weight.shape
    require(rows.dtype in KV_DTYPES, f"conv1d: type {rows.dtype}")
    require(len(rows) == batch.rows, f"conv1d: {len(rows)} rows, the batch has {batch.rows}")
    require_rows("rows", rows, (len(rows), channels), rows)
    require_rows("weight", weight, (width, channels), rows)
    require_rows("states", states, (len(states), width - 1, channels), rows)
    require(weight.is_contiguous() and states.is_contiguous(), "conv1d: weight and states must be contiguous")
    require(width >= 2, f"conv1d: width {width}")


def conv1d_reference(rows: Tensor, weight: Tensor, states: Tensor, batch: StateBatch) -> Tensor:
    """As `Kernels.conv1d`."""
    width, out = len(weight), torch.zeros(rows.shape, dtype=rows.dtype, device=rows.device)
    for each in batch.sequences:
        part = slice(each.first_row, each.first_row + each.row_count)
        before = torch.zeros_like(states[0]) if each.read_slot is None else states[each.read_slot]
        inputs = torch.cat([before, rows[part]])  # [width - 1 + n, channels]
        taps = [inputs[tap : tap + each.row_count].float() * weight[tap].float() for tap in range(width)]
        out[part] = silu(torch.stack(taps).sum(0)).to(rows.dtype)
        for done, slot in each.stores:
            states[slot] = inputs[done : done + width - 1]
    return out


@lru_cache(maxsize=8)
def row_tiles(batch: StateBatch, rows: int) -> tuple[Tensor, Tensor, int]:
    """Tiles of at most `rows` rows: their sequence and first row, and their number."""
    tiles = [(index, offset) for index, each in enumerate(batch.sequences) for offset in range(0, each.row_count, rows)]
    device = batch.first_row.device
    sequences = index_tensor([index for index, _ in tiles], device)
    return sequences, index_tensor([offset for _, offset in tiles], device), len(tiles)


@lru_cache(maxsize=8)
def row_counts(batch: StateBatch) -> Tensor:
    """Rows of each sequence, `[n]` int32."""
    return index_tensor([each.row_count for each in batch.sequences], batch.first_row.device)


def conv1d_triton(
    launch: Launch, target: Target, rows: Tensor, weight: Tensor, states: Tensor, batch: StateBatch
) -> Tensor:
    """As `Kernels.conv1d`."""
    from reference_engine.kernels.source.conv1d import conv_kernel, conv_state_kernel

    (width, channels), (tile_rows, most) = weight.shape, target.conv_tile
    columns = min(most, channels & -channels)
    require(columns >= 16, f"{target.name}: conv1d over {channels} channels, no multiple of 16")
    sequences, offsets, tiles = row_tiles(batch, tile_rows)
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    reads = {"read_slot_ptr": batch.read_slot, "has_state_ptr": batch.has_state}
    launch(
        conv_kernel,
        programs_for(target, tiles * (channels // columns), matrix=False),
        {
            "row_ptr": rows,
            "weight_ptr": weight,
            "state_ptr": states,
            "out_ptr": out,
            "first_row_ptr": batch.first_row,
            "row_count_ptr": row_counts(batch),
            **reads,
            "tile_sequence_ptr": sequences,
            "tile_offset_ptr": offsets,
            "tiles": tiles,
        },
        {"CHANNELS": channels, "WIDTH": width, "ROWS": tile_rows, "COLUMNS": columns, "STRIDE": rows.stride(0)},
        warps=4,
        stages=1,
    )
    launch(
        conv_state_kernel,
        programs_for(target, len(batch.sequences) * (channels // columns), matrix=False),
        {
            "row_ptr": rows,
            "state_ptr": states,
            "first_row_ptr": batch.first_row,
            **reads,
            "store_begin_ptr": batch.store_begin,
            "store_rows_ptr": batch.store_rows,
            "store_slot_ptr": batch.store_slot,
            "sequences": len(batch.sequences),
        },
        {"CHANNELS": channels, "WIDTH": width, "COLUMNS": columns, "STRIDE": rows.stride(0)},
        warps=4,
        stages=1,
    )
    return out
