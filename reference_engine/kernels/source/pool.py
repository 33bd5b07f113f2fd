"""Storing keys and values, and copying blocks."""

import triton
import triton.language as tl


@triton.jit
def write_kernel(
    key_ptr,  # [n, ROW], rows KEY_STRIDE apart
    value_ptr,  # [n, ROW], rows VALUE_STRIDE apart
    key_pool_ptr,  # [pool_tokens, ROW]
    value_pool_ptr,
    slot_ptr,  # [n] int32
    n,
    ROW: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for row in range(tl.program_id(0), n, tl.num_programs(0)):
        slot = tl.cast(tl.load(slot_ptr + row), tl.int64)
        at = tl.cast(row, tl.int64)
        for first in range(0, ROW, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < ROW
            key = tl.load(key_ptr + at * KEY_STRIDE + column, mask=inside)
            value = tl.load(value_ptr + at * VALUE_STRIDE + column, mask=inside)
            tl.store(key_pool_ptr + slot * ROW + column, key, mask=inside)
            tl.store(value_pool_ptr + slot * ROW + column, value, mask=inside)


@triton.jit
def copy_blocks_kernel(
    key_pool_ptr,  # [LAYERS, blocks, BLOCK_ELEMENTS]
    value_pool_ptr,
    source_ptr,  # [n] int32, block numbers
    target_ptr,  # [n] int32
    n,
    layer_elements,  # elements of one layer
    layers,
    BLOCK_ELEMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    PIECES: tl.constexpr = (BLOCK_ELEMENTS + BLOCK - 1) // BLOCK
    for task in range(tl.program_id(0), n * layers * PIECES, tl.num_programs(0)):
        piece = task % PIECES
        pair = (task // PIECES) % n
        layer = tl.cast(task // (PIECES * n), tl.int64) * layer_elements
        source = layer + tl.cast(tl.load(source_ptr + pair), tl.int64) * BLOCK_ELEMENTS
        target = layer + tl.cast(tl.load(target_ptr + pair), tl.int64) * BLOCK_ELEMENTS
        element = piece * BLOCK + tl.arange(0, BLOCK)
        inside = element < BLOCK_ELEMENTS
        tl.store(key_pool_ptr + target + element, tl.load(key_pool_ptr + source + element, mask=inside), mask=inside)
        tl.store(
            value_pool_ptr + target + element, tl.load(value_pool_ptr + source + element, mask=inside), mask=inside
        )
