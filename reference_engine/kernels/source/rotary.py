"""Rotary embedding in place: rows of a call by their absolute positions, or cached keys by a shift."""

import triton
import triton.language as tl


@triton.jit
def rotate_kernel(
    row_ptr,  # [rows, HEADS, HEAD_DIM], rows STRIDE apart; changed in place
    slot_ptr,  # [n] int32: the row of task i; unused unless INDIRECT
    angle_ptr,  # [n] int32: the row of the tables for task i
    cosine_ptr,  # [angles, HALF] fp32
    sine_ptr,
    n,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    STRIDE: tl.constexpr,
    INDIRECT: tl.constexpr,
):
    # Element i turns with element i + HALF; elements from 2 * HALF on stay (partial rotary).
    i = tl.arange(0, HALF)
    head = tl.arange(0, HEADS_PADDED)
    inside = (head < HEADS)[:, None]
    for task in range(tl.program_id(0), n, tl.num_programs(0)):
        row = tl.cast(task, tl.int64)
        if INDIRECT:
            row = tl.cast(tl.load(slot_ptr + task), tl.int64)
        angle = tl.cast(tl.load(angle_ptr + task), tl.int64) * HALF
        cosine = tl.load(cosine_ptr + angle + i)[None, :]
        sine = tl.load(sine_ptr + angle + i)[None, :]
        at = row_ptr + row * STRIDE + head[:, None] * HEAD_DIM + i[None, :]
        first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, (first * cosine - second * sine).to(row_ptr.dtype.element_ty), mask=inside)
        tl.store(at + HALF, (second * cosine + first * sine).to(row_ptr.dtype.element_ty), mask=inside)
