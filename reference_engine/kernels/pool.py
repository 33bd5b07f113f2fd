"""Storing new keys and values in a layer's pool, and copying whole blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reference_engine.kernels.launch import Launch, power_of_two, programs_for
from reference_engine.kernels.shapes import KV_DTYPES, LayerPool, index_tensor, require, require_rows
from reference_engine.kernels.targets import Target


def check_write(keys: Tensor, values: Tensor, pool: LayerPool, slots: Tensor) -> None:
    """Keys and values `[n, kv_heads, head_dim]`, slots `[n]` int32."""
    shape = (len(slots), pool.kv_heads, pool.head_dim)
    require_rows("keys", keys, shape, pool.keys)
    require_rows("values", values, shape, pool.values)
    require_rows("slots", slots, (len(slots),), slots.int())


def write_reference(keys: Tensor, values: Tensor, pool: LayerPool, slots: Tensor) -> None:
    """As `Kernels.write`."""
    pool.keys[slots.long()] = keys
    pool.values[slots.long()] = values


def write_triton(launch: Launch, target: Target, keys: Tensor, values: Tensor, pool: LayerPool, slots: Tensor) -> None:
    """As `Kernels.write`."""
    from reference_engine.kernels.source.pool import write_kernel

    row = pool.kv_heads * pool.head_dim
    launch(
        write_kernel,
        programs_for(target, len(slots), matrix=False),
        {
            "key_ptr": keys,
            "value_ptr": values,
            "key_pool_ptr": pool.keys,
            "value_pool_ptr": pool.values,
            "slot_ptr": slots,
            "n": len(slots),
        },
        {
            "ROW": row,
            "KEY_STRIDE": keys.stride(0),
            "VALUE_STRIDE": values.stride(0),
            "BLOCK": min(power_of_two(row), target.copy_elements),
        },
        warps=4,
        stages=1,
    )


def check_copy(keys: Tensor, values: Tensor, page: int, pairs: Sequence[tuple[int, int]]) -> None:
    """Pools `[layers, pool_tokens, kv_heads, head_dim]`; no block is written twice, none is read and written."""
    require(keys.dim() == 4 and keys.shape == values.shape, f"copy: pools {tuple(keys.shape)}, {tuple(values.shape)}")
    require(keys.is_contiguous() and values.is_contiguous(), "copy: the pools must be contiguous")
    require(keys.dtype in KV_DTYPES and values.dtype is keys.dtype, f"copy: types {keys.dtype}, {values.dtype}")
    require(page > 0 and keys.shape[1] % page == 0, f"copy: {keys.shape[1]} slots are no multiple of page {page}")
    targets = [target for _, target in pairs]
    require(len(set(targets)) == len(targets), f"copy: a block is written twice: {targets}")
    require(not set(targets) & {source for source, _ in pairs}, "copy: a block is both read and written")
    blocks = keys.shape[1] // page
    require(all(0 <= block < blocks for pair in pairs for block in pair), f"copy: {pairs} leave the {blocks} blocks")


def copy_reference(keys: Tensor, values: Tensor, page: int, pairs: Sequence[tuple[int, int]]) -> None:
    """As `Kernels.copy_blocks`."""
    for pool in (keys, values):
        for source, target in pairs:
            pool[:, target * page : (target + 1) * page] = pool[:, source * page : (source + 1) * page]


def copy_triton(
    launch: Launch, target: Target, keys: Tensor, values: Tensor, page: int, pairs: Sequence[tuple[int, int]]
) -> None:
    """As `Kernels.copy_blocks`; one launch for all layers."""
    from reference_engine.kernels.source.pool import copy_blocks_kernel

    layers, pool_tokens, kv_heads, head_dim = keys.shape
    elements = page * kv_heads * head_dim
    block = min(power_of_two(elements), target.copy_elements)
    pieces = -(-elements // block)
    launch(
        copy_blocks_kernel,
        programs_for(target, len(pairs) * layers * pieces, matrix=False),
        {
            "key_pool_ptr": keys,
            "value_pool_ptr": values,
            "source_ptr": index_tensor([source for source, _ in pairs], keys.device),
            "target_ptr": index_tensor([target for _, target in pairs], keys.device),
            "n": len(pairs),
            "layer_elements": pool_tokens * kv_heads * head_dim,
            "layers": layers,
        },
        {"BLOCK_ELEMENTS": elements, "BLOCK": block},
        warps=4,
        stages=1,
    )
