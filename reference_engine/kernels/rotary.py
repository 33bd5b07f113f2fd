"""Rotary embedding (halves, optionally of a head's first part only), at absolute positions and as a later shift.

Angles come as tables, made on the host in fp64: `cos(position * frequency)` in fp32 arithmetic is wrong by 5e-4 at
position 30,000 already. A shift composes, R(p + d) = R(d) R(p), but every store rounds: shift a key once, from the
position it was computed at.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_engine.kernels.launch import Launch, power_of_two, programs_for
from reference_engine.kernels.shapes import HEAD_DIMS, KV_DTYPES, require, require_rows
from reference_engine.kernels.targets import Target


def angle_tables(frequencies: Sequence[float], turns: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[turns, rotary_dim / 2]` in fp32 of whole positions or (negative too) distances."""
    angles = torch.tensor(turns, dtype=torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def check_rotate(rows: Tensor, slots: Tensor | None, angles: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Rows `[m, heads, head_dim]`, slots and angles `[n]` int32, tables `[turns, rotary_dim / 2]` fp32."""
    require(rows.dim() == 3 and rows.dtype in KV_DTYPES, f"rotary: rows {tuple(rows.shape)} {rows.dtype}")
    require_rows("rows", rows, tuple(rows.shape), rows)
    half = cosine.shape[1]
    require(rows.shape[2] in HEAD_DIMS, f"rotary: head_dim {rows.shape[2]} is none of {HEAD_DIMS}")
    require(half & (half - 1) == 0 and 2 * half <= rows.shape[2], f"rotary: rotary_dim {2 * half}")
    require_rows("angles", angles, (len(angles),), angles.int())
    if slots is None:
        require(len(angles) == len(rows), f"rotary: {len(angles)} angles for {len(rows)} rows")
    else:
        require_rows("slots", slots, (len(angles),), angles)
    for name, table in (("cosine", cosine), ("sine", sine)):
        require_rows(name, table, tuple(cosine.shape), cosine.float())
        require(table.is_contiguous(), f"rotary: {name} must be contiguous")


def rotate_reference(rows: Tensor, slots: Tensor | None, angles: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """As `Kernels.rotate`."""
    half = cosine.shape[1]
    index = torch.arange(len(rows), device=rows.device) if slots is None else slots.long()
    cos, sin = cosine[angles.long(), None], sine[angles.long(), None]  # [n, 1, half]
    first, second = rows[index, :, :half].float(), rows[index, :, half : 2 * half].float()
    rows[index, :, :half] = (first * cos - second * sin).to(rows.dtype)
    rows[index, :, half : 2 * half] = (second * cos + first * sin).to(rows.dtype)


def rotate_triton(
    launch: Launch,
    target: Target,
    rows: Tensor,
    slots: Tensor | None,
    angles: Tensor,
    cosine: Tensor,
    sine: Tensor,
) -> None:
    """As `Kernels.rotate`."""
    from reference_engine.kernels.source.rotary import rotate_kernel

    _, heads, head_dim = rows.shape
    launch(
        rotate_kernel,
        programs_for(target, len(angles), matrix=False),
        {
            "row_ptr": rows,
            "slot_ptr": angles if slots is None else slots,
            "angle_ptr": angles,
            "cosine_ptr": cosine,
            "sine_ptr": sine,
            "n": len(angles),
        },
        {
            "HEADS": heads,
            "HEADS_PADDED": power_of_two(heads),
            "HEAD_DIM": head_dim,
            "HALF": cosine.shape[1],
            "STRIDE": rows.stride(0),
            "INDIRECT": slots is not None,
        },
        warps=4,
        stages=1,
    )
