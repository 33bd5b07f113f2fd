"""Paged attention: a prefill that starts at the hit, and a decode split over the keys.

Softmax in base 2, running maximum and sum in fp32. A step takes KEYS keys, always cut at absolute multiples of KEYS:
two runs that start at different multiples see the same steps, and a step that a query sees nothing of adds exact
zeros. That is what makes a hit equal to a cold run bit for bit.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(-1.0e30)


@triton.jit
def _soften(mixed, top, total, query, key, value, seen, scale_log2, MASKED: tl.constexpr):
    """One step of softmax: query [M, D], key and value [N, D], seen [M, N]."""
    score = tl.dot(query, tl.trans(key)) * scale_log2
    if MASKED:
        score = tl.where(seen, score, NEVER)
    new_top = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp2(score - new_top[:, None])
    if MASKED:
        weight = tl.where(seen, weight, 0.0)
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weight, 1)
    mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
    return mixed, new_top, total


@triton.jit
def _paged(table_ptr, first, n, limit, PAGE: tl.constexpr, KEYS: tl.constexpr, ROW: tl.constexpr):
    """Element offsets [KEYS, 1] of the rows of positions `first + n`."""
    if PAGE % KEYS == 0:  # within one block: one block number, consecutive rows
        block = tl.cast(tl.load(table_ptr + first // PAGE), tl.int64)
        return (block * PAGE + first % PAGE) * ROW + n[:, None] * ROW
    at = first + n
    block = tl.load(table_ptr + at // PAGE, mask=at < limit, other=0).to(tl.int64)
    return (block * PAGE + at % PAGE)[:, None] * ROW


@triton.jit
def extend_kernel(
    query_ptr,  # [rows, KV_HEADS * GROUP, HEAD_DIM], rows QUERY_STRIDE apart
    key_ptr,  # [rows, KV_HEADS, HEAD_DIM], rows KEY_STRIDE apart: the new ones
    value_ptr,
    key_pool_ptr,  # [pool_tokens, KV_HEADS, HEAD_DIM], only read
    value_pool_ptr,
    mixed_ptr,  # [rows, KV_HEADS * GROUP, HEAD_DIM]
    table_ptr,  # [sequences, table_width] int32
    table_width,
    first_row_ptr,  # [sequences] int32
    row_count_ptr,
    hit_len_ptr,
    tile_sequence_ptr,  # [tiles] int32
    tile_offset_ptr,  # [tiles] int32: first query of the tile, counted from the sequence's first row
    tiles,
    scale_log2,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none; else a query sees itself and WINDOW - 1 positions before it
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
):
    ROWS: tl.constexpr = QUERIES * GROUP_PADDED
    POOL_ROW: tl.constexpr = KV_HEADS * HEAD_DIM
    MIXED_ROW: tl.constexpr = KV_HEADS * GROUP * HEAD_DIM
    i = tl.arange(0, QUERIES)
    g = tl.arange(0, GROUP_PADDED)
    n = tl.arange(0, KEYS)
    d = tl.arange(0, HEAD_DIM)
    for task in range(tl.program_id(0), tiles * KV_HEADS, tl.num_programs(0)):
        kv_head = task % KV_HEADS
        tile = task // KV_HEADS
        sequence = tl.load(tile_sequence_ptr + tile)
        offset = tl.load(tile_offset_ptr + tile)
        first_row = tl.load(first_row_ptr + sequence)
        row_count = tl.load(row_count_ptr + sequence)
        hit_len = tl.load(hit_len_ptr + sequence)
        row0 = tl.cast(first_row + offset, tl.int64)
        # [QUERIES, GROUP_PADDED, HEAD_DIM], then one row per query and head
        head = kv_head * GROUP * HEAD_DIM + g[None, :, None] * HEAD_DIM + d[None, None, :]
        inside = (offset + i < row_count)[:, None, None] & (g < GROUP)[None, :, None]
        query = tl.load(
            query_ptr + row0 * QUERY_STRIDE + i[:, None, None] * QUERY_STRIDE + head, mask=inside, other=0.0
        )
        query = tl.reshape(query, (ROWS, HEAD_DIM))
        row = tl.reshape(tl.broadcast_to((offset + i)[:, None], (QUERIES, GROUP_PADDED)), (ROWS,))
        position = hit_len + row
        top = tl.full([ROWS], NEVER, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, HEAD_DIM], tl.float32)
        column = kv_head * HEAD_DIM + d[None, :]
        table = table_ptr + sequence * table_width
        # Cached keys, whole steps: every query sees all of them unless a window hides some.
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(hit_len + offset - WINDOW + 1, 0) // KEYS * KEYS
        whole = hit_len // KEYS * KEYS
        for first in range(begin, whole, KEYS):
            at = _paged(table, first, n, hit_len, PAGE, KEYS, POOL_ROW) + column
            key = tl.load(key_pool_ptr + at)
            value = tl.load(value_pool_ptr + at)
            seen = (first + n)[None, :] > position[:, None] - WINDOW
            mixed, top, total = _soften(mixed, top, total, query, key, value, seen, scale_log2, WINDOW > 0)
        # The last step of the cache, where the hit ends within it.
        for first in range(tl.maximum(begin, whole), hit_len, KEYS):
            at = _paged(table, first, n, hit_len, PAGE, KEYS, POOL_ROW) + column
            cached = (first + n < hit_len)[:, None]
            key = tl.load(key_pool_ptr + at, mask=cached, other=0.0)
            value = tl.load(value_pool_ptr + at, mask=cached, other=0.0)
            seen = (first + n < hit_len)[None, :] & (position >= 0)[:, None]
            if WINDOW > 0:
                seen = seen & ((first + n)[None, :] > position[:, None] - WINDOW)
            mixed, top, total = _soften(mixed, top, total, query, key, value, seen, scale_log2, True)
        # New keys: first the steps that lie wholly before the tile's first query, then the causal rest.
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(offset - WINDOW + 1, 0) // KEYS * KEYS
        end = tl.minimum(offset + QUERIES, row_count)
        whole = tl.maximum((offset + 1) // KEYS * KEYS, begin)
        if WINDOW > 0:
            whole = begin
        new_row = tl.cast(first_row, tl.int64)
        for first in range(begin, whole, KEYS):
            key = tl.load(key_ptr + (new_row + first) * KEY_STRIDE + n[:, None] * KEY_STRIDE + column)
            value = tl.load(value_ptr + (new_row + first) * VALUE_STRIDE + n[:, None] * VALUE_STRIDE + column)
            seen = (row >= 0)[:, None] & (n >= 0)[None, :]
            mixed, top, total = _soften(mixed, top, total, query, key, value, seen, scale_log2, False)
        for first in range(whole, end, KEYS):
            new = (first + n < end)[:, None]
            key = tl.load(
                key_ptr + (new_row + first) * KEY_STRIDE + n[:, None] * KEY_STRIDE + column, mask=new, other=0.0
            )
            value = tl.load(
                value_ptr + (new_row + first) * VALUE_STRIDE + n[:, None] * VALUE_STRIDE + column, mask=new, other=0.0
            )
            seen = ((first + n)[None, :] <= row[:, None]) & (first + n < end)[None, :]
            if WINDOW > 0:
                seen = seen & ((first + n)[None, :] > row[:, None] - WINDOW)
            mixed, top, total = _soften(mixed, top, total, query, key, value, seen, scale_log2, True)
        total = tl.where(total > 0.0, total, 1.0)
        mixed = tl.reshape((mixed / total[:, None]).to(mixed_ptr.dtype.element_ty), (QUERIES, GROUP_PADDED, HEAD_DIM))
        tl.store(mixed_ptr + row0 * MIXED_ROW + i[:, None, None] * MIXED_ROW + head, mixed, mask=inside)


@triton.jit
def decode_kernel(
    query_ptr,  # [sequences, KV_HEADS * GROUP, HEAD_DIM], rows QUERY_STRIDE apart
    key_pool_ptr,  # [pool_tokens, KV_HEADS, HEAD_DIM], only read
    value_pool_ptr,
    part_ptr,  # [sequences, splits, KV_HEADS * GROUP, HEAD_DIM] fp32
    weight_ptr,  # [sequences, splits, KV_HEADS * GROUP] fp32: log2 of the sum of weights
    table_ptr,  # [sequences, table_width] int32
    table_width,
    len_ptr,  # [sequences] int32
    sequences,
    splits,
    scale_log2,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    SPAN: tl.constexpr,  # keys of one split, a multiple of KEYS
    WINDOW: tl.constexpr,
    QUERY_STRIDE: tl.constexpr,
):
    POOL_ROW: tl.constexpr = KV_HEADS * HEAD_DIM
    g = tl.arange(0, GROUP_PADDED)
    n = tl.arange(0, KEYS)
    d = tl.arange(0, HEAD_DIM)
    for task in range(tl.program_id(0), sequences * KV_HEADS * splits, tl.num_programs(0)):
        split = task % splits
        kv_head = (task // splits) % KV_HEADS
        sequence = task // (splits * KV_HEADS)
        length = tl.load(len_ptr + sequence)
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(length - WINDOW, 0)
        # Splits are counted from the one that holds the first visible key.
        low = (begin // SPAN + split) * SPAN
        high = tl.minimum(low + SPAN, length)
        head = kv_head * GROUP + g
        query = tl.load(
            query_ptr + tl.cast(sequence, tl.int64) * QUERY_STRIDE + head[:, None] * HEAD_DIM + d[None, :],
            mask=(g < GROUP)[:, None],
            other=0.0,
        )
        top = tl.full([GROUP_PADDED], NEVER, tl.float32)
        total = tl.zeros([GROUP_PADDED], tl.float32)
        mixed = tl.zeros([GROUP_PADDED, HEAD_DIM], tl.float32)
        table = table_ptr + sequence * table_width
        for first in range(tl.maximum(low, begin // KEYS * KEYS), high, KEYS):
            at = _paged(table, first, n, high, PAGE, KEYS, POOL_ROW) + kv_head * HEAD_DIM + d[None, :]
            held = (first + n < high)[:, None]
            key = tl.load(key_pool_ptr + at, mask=held, other=0.0)
            value = tl.load(value_pool_ptr + at, mask=held, other=0.0)
            seen = ((first + n < high) & (first + n >= begin))[None, :] & (g < GROUP_PADDED)[:, None]
            mixed, top, total = _soften(mixed, top, total, query, key, value, seen, scale_log2, True)
        divisor = tl.where(total > 0.0, total, 1.0)
        at = tl.cast(sequence * splits + split, tl.int64) * (KV_HEADS * GROUP)
        tl.store(
            part_ptr + at * HEAD_DIM + head[:, None] * HEAD_DIM + d[None, :],
            mixed / divisor[:, None],
            mask=(g < GROUP)[:, None],
        )
        tl.store(weight_ptr + at + head, tl.where(total > 0.0, top + tl.log2(divisor), NEVER), mask=g < GROUP)


@triton.jit
def merge_kernel(
    part_ptr,  # [sequences, splits, HEADS, HEAD_DIM] fp32
    weight_ptr,  # [sequences, splits, HEADS] fp32
    mixed_ptr,  # [sequences, HEADS, HEAD_DIM]
    len_ptr,  # [sequences] int32
    sequences,
    splits,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPAN: tl.constexpr,
    WINDOW: tl.constexpr,
):
    d = tl.arange(0, HEAD_DIM)
    for row in range(tl.program_id(0), sequences * HEADS, tl.num_programs(0)):
        sequence = row // HEADS
        head = row % HEADS
        length = tl.load(len_ptr + sequence)
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(length - WINDOW, 0)
        used = (length - 1) // SPAN - begin // SPAN + 1
        # The first split always holds a visible key or the maximum starts at NEVER and its share at zero.
        top = tl.load(weight_ptr + sequence * splits * HEADS + head)
        total = 1.0
        mixed = tl.load(part_ptr + (tl.cast(sequence, tl.int64) * splits * HEADS + head) * HEAD_DIM + d)
        for split in range(1, used):
            at = (tl.cast(sequence, tl.int64) * splits + split) * HEADS + head
            weight = tl.load(weight_ptr + at)
            part = tl.load(part_ptr + at * HEAD_DIM + d)
            new_top = tl.maximum(top, weight)
            shrink = tl.exp2(top - new_top)
            share = tl.exp2(weight - new_top)
            mixed = mixed * shrink + part * share
            total = total * shrink + share
            top = new_top
        tl.store(mixed_ptr + tl.cast(row, tl.int64) * HEAD_DIM + d, (mixed / total).to(mixed_ptr.dtype.element_ty))
