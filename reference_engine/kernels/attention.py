"""Paged attention: prefill from the hit on, and decode split over the keys.

Prefill reads positions `[0, hit_len)` from the pool, never writes there, and takes the new keys from the call, so that
they need not be stored yet. Both sum in fp32 and store in the operands' type.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from reference_engine.kernels.launch import Launch, power_of_two, programs_for
from reference_engine.kernels.shapes import DecodeBatch, ExtendBatch, LayerPool, index_tensor, require, require_rows
from reference_engine.kernels.targets import Target, Tile

LOG2_E = 1.4426950408889634


def check_extend(
    queries: Tensor, keys: Tensor, values: Tensor, pool: LayerPool, batch: ExtendBatch, window: int | None
) -> None:
    """Queries `[rows, heads, head_dim]`, keys and values `[rows, kv_heads, head_dim]`, in the pool's type."""
    rows, heads = queries.shape[0], queries.shape[1]
    require(batch.page == pool.page, f"extend: page {batch.page} in the batch, {pool.page} in the pool")
    require(rows == batch.rows, f"extend: {rows} rows, the batch has {batch.rows}")
    require(heads % pool.kv_heads == 0, f"extend: {heads} heads are no multiple of {pool.kv_heads} KV heads")
    require_rows("queries", queries, (rows, heads, pool.head_dim), pool.keys)
    require_rows("keys", keys, (rows, pool.kv_heads, pool.head_dim), pool.keys)
    require_rows("values", values, (rows, pool.kv_heads, pool.head_dim), pool.keys)
    require(window is None or window > 0, f"extend: window {window}")


def attend(queries: Tensor, keys: Tensor, values: Tensor, start: int, scale: float, window: int | None) -> Tensor:
    """Queries `[n, heads, head_dim]` at positions `[start, start + n)` over keys `[start + n, kv_heads, head_dim]`."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (each.float().repeat_interleave(group, 1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.float(), keys) * scale
    position = torch.arange(start, start + len(queries), device=queries.device)[:, None]
    key = torch.arange(len(keys), device=queries.device)[None]
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)
    return mixed.to(queries.dtype)


def cached_slots(blocks: Tensor, page: int, length: int) -> Tensor:
    """Slots of positions `[0, length)`."""
    position = torch.arange(length, device=blocks.device)
    return blocks.long()[position // page] * page + position % page


def extend_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    pool: LayerPool,
    batch: ExtendBatch,
    scale: float,
    window: int | None,
) -> Tensor:
    """As `Kernels.extend`."""
    mixed = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
    for index, each in enumerate(batch.sequences):
        rows = slice(each.first_row, each.first_row + each.row_count)
        slots = cached_slots(batch.block_table[index], batch.page, each.hit_len)
        all_keys, all_values = torch.cat([pool.keys[slots], keys[rows]]), torch.cat([pool.values[slots], values[rows]])
        mixed[rows] = attend(queries[rows], all_keys, all_values, each.hit_len, scale, window)
    return mixed


def tile_of(tiles: dict[int, Tile], head_dim: int, target: Target) -> Tile:
    """The tile of a head_dim; KernelDoesNotCover where the target has none."""
    require(head_dim in tiles, f"{target.name}: no tile for head_dim {head_dim}")
    return tiles[head_dim]


@lru_cache(maxsize=8)
def query_tiles(batch: ExtendBatch, queries: int) -> tuple[Tensor, Tensor, int]:
    """Tiles of at most `queries` rows, those with the most keys first: their sequence, first row, and their number."""
    tiles = [
        (each.hit_len + offset, index, offset)
        for index, each in enumerate(batch.sequences)
        for offset in range(0, each.row_count, queries)
    ]
    tiles.sort(reverse=True)
    device = batch.block_table.device
    sequences = index_tensor([index for _, index, _ in tiles], device)
    return sequences, index_tensor([offset for _, _, offset in tiles], device), len(tiles)


def extend_triton(
    launch: Launch,
    target: Target,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    pool: LayerPool,
    batch: ExtendBatch,
    scale: float,
    window: int | None,
) -> Tensor:
    """As `Kernels.extend`."""
    tile = tile_of(target.extend, pool.head_dim, target)
    group = queries.shape[1] // pool.kv_heads
    padded = power_of_two(group)
    require(padded <= tile.rows, f"{target.name}: {group} heads per KV head, a tile has {tile.rows} rows")
    per_tile = tile.rows // padded
    sequences, offsets, tiles = query_tiles(batch, per_tile)
    keys_per_step = target.keys_per_step(tile, batch.page)
    mixed = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    from reference_engine.kernels.source.attention import extend_kernel

    launch(
        extend_kernel,
        programs_for(target, tiles * pool.kv_heads, matrix=True),
        {
            "query_ptr": queries,
            "key_ptr": keys,
            "value_ptr": values,
            "key_pool_ptr": pool.keys,
            "value_pool_ptr": pool.values,
            "mixed_ptr": mixed,
            "table_ptr": batch.block_table,
            "table_width": batch.block_table.shape[1],
            "first_row_ptr": batch.first_row,
            "row_count_ptr": batch.row_count,
            "hit_len_ptr": batch.hit_len,
            "tile_sequence_ptr": sequences,
            "tile_offset_ptr": offsets,
            "tiles": tiles,
            "scale_log2": scale * LOG2_E,
        },
        {
            "KV_HEADS": pool.kv_heads,
            "GROUP": group,
            "GROUP_PADDED": padded,
            "HEAD_DIM": pool.head_dim,
            "PAGE": batch.page,
            "QUERIES": per_tile,
            "KEYS": keys_per_step,
            "WINDOW": window or 0,
            "QUERY_STRIDE": queries.stride(0),
            "KEY_STRIDE": keys.stride(0),
            "VALUE_STRIDE": values.stride(0),
        },
        warps=tile.warps,
        stages=tile.stages,
    )
    return mixed


def check_decode(queries: Tensor, pool: LayerPool, batch: DecodeBatch, window: int | None) -> None:
    """Queries `[n, heads, head_dim]` in the pool's type."""
    n, heads, _ = queries.shape
    require(batch.page == pool.page, f"decode: page {batch.page} in the batch, {pool.page} in the pool")
    require(n == len(batch.lens), f"decode: {n} queries for {len(batch.lens)} sequences")
    require(heads % pool.kv_heads == 0, f"decode: {heads} heads are no multiple of {pool.kv_heads} KV heads")
    require_rows("queries", queries, (n, heads, pool.head_dim), pool.keys)
    require(window is None or window > 0, f"decode: window {window}")


def decode_reference(queries: Tensor, pool: LayerPool, batch: DecodeBatch, scale: float, window: int | None) -> Tensor:
    """As `Kernels.decode`."""
    mixed = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    for index, length in enumerate(batch.lens):
        slots = cached_slots(batch.block_table[index], batch.page, length)
        one = slice(index, index + 1)
        mixed[one] = attend(queries[one], pool.keys[slots], pool.values[slots], length - 1, scale, window)
    return mixed


def decode_triton(
    launch: Launch,
    target: Target,
    queries: Tensor,
    pool: LayerPool,
    batch: DecodeBatch,
    scale: float,
    window: int | None,
) -> Tensor:
    """As `Kernels.decode`."""
    from reference_engine.kernels.source.attention import decode_kernel, merge_kernel

    tile = tile_of(target.decode, pool.head_dim, target)
    (n, heads, head_dim), span = queries.shape, target.decode_span
    group = heads // pool.kv_heads
    padded = power_of_two(max(group, tile.rows))  # a matrix product has no fewer rows
    splits = max((length - 1) // span - max(length - (window or length), 0) // span + 1 for length in batch.lens)
    parts = torch.empty((n, splits, heads, head_dim), dtype=torch.float32, device=queries.device)
    weights = torch.empty((n, splits, heads), dtype=torch.float32, device=queries.device)
    mixed = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    launch(
        decode_kernel,
        programs_for(target, n * pool.kv_heads * splits, matrix=True),
        {
            "query_ptr": queries,
            "key_pool_ptr": pool.keys,
            "value_pool_ptr": pool.values,
            "part_ptr": parts,
            "weight_ptr": weights,
            "table_ptr": batch.block_table,
            "table_width": batch.block_table.shape[1],
            "len_ptr": batch.lens_on_device,
            "sequences": n,
            "splits": splits,
            "scale_log2": scale * LOG2_E,
        },
        {
            "KV_HEADS": pool.kv_heads,
            "GROUP": group,
            "GROUP_PADDED": padded,
            "HEAD_DIM": head_dim,
            "PAGE": batch.page,
            "KEYS": target.keys_per_step(tile, batch.page),
            "SPAN": span,
            "WINDOW": window or 0,
            "QUERY_STRIDE": queries.stride(0),
        },
        warps=tile.warps,
        stages=tile.stages,
    )
    launch(
        merge_kernel,
        programs_for(target, n * heads, matrix=False),
        {
            "part_ptr": parts,
            "weight_ptr": weights,
            "mixed_ptr": mixed,
            "len_ptr": batch.lens_on_device,
            "sequences": n,
            "splits": splits,
        },
        {"HEADS": heads, "HEAD_DIM": head_dim, "SPAN": span, "WINDOW": window or 0},
        warps=1,
        stages=1,
    )
    return mixed
