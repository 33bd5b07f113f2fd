"""Causal depthwise convolution with SiLU over packed sequences, and the state it leaves: the last WIDTH - 1 inputs."""

import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    row_ptr,  # [rows, CHANNELS], rows STRIDE apart
    weight_ptr,  # [WIDTH, CHANNELS]
    state_ptr,  # [slots, WIDTH - 1, CHANNELS], only read
    out_ptr,  # [rows, CHANNELS]
    first_row_ptr,  # [sequences] int32
    row_count_ptr,
    read_slot_ptr,
    has_state_ptr,
    tile_sequence_ptr,  # [tiles] int32
    tile_offset_ptr,
    tiles,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    PIECES: tl.constexpr = CHANNELS // COLUMNS
    i = tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    for task in range(tl.program_id(0), tiles * PIECES, tl.num_programs(0)):
        column = (task % PIECES) * COLUMNS + c
        tile = task // PIECES
        sequence = tl.load(tile_sequence_ptr + tile)
        offset = tl.load(tile_offset_ptr + tile)
        row_count = tl.load(row_count_ptr + sequence)
        has_state = tl.load(has_state_ptr + sequence)
        row0 = tl.cast(tl.load(first_row_ptr + sequence), tl.int64)
        slot = tl.cast(tl.load(read_slot_ptr + sequence), tl.int64) * ((WIDTH - 1) * CHANNELS)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for tap in tl.static_range(WIDTH):
            # Input `offset + i - (WIDTH - 1) + tap`: of this call where not negative, else of the state.
            back = offset + tap - (WIDTH - 1)
            here = ((back + i >= 0) & (back + i < row_count))[:, None]
            before = ((back + i < 0) & (has_state > 0))[:, None]
            fresh = tl.load(
                row_ptr + (row0 + back) * STRIDE + i[:, None] * STRIDE + column[None, :], mask=here, other=0.0
            ).to(tl.float32)
            kept = tl.load(
                state_ptr + slot + (back + WIDTH - 1) * CHANNELS + i[:, None] * CHANNELS + column[None, :],
                mask=before,
                other=0.0,
            ).to(tl.float32)
            total += (fresh + kept) * tl.load(weight_ptr + tap * CHANNELS + column).to(tl.float32)[None, :]
        total = total / (1.0 + tl.exp(-total))
        tl.store(
            out_ptr + (row0 + offset) * CHANNELS + i[:, None] * CHANNELS + column[None, :],
            total.to(out_ptr.dtype.element_ty),
            mask=(offset + i < row_count)[:, None],
        )


@triton.jit
def conv_state_kernel(
    row_ptr,  # [rows, CHANNELS], rows STRIDE apart
    state_ptr,  # [slots, WIDTH - 1, CHANNELS]
    first_row_ptr,  # [sequences] int32
    read_slot_ptr,
    has_state_ptr,
    store_begin_ptr,  # [sequences + 1] int32
    store_rows_ptr,  # [stores] int32
    store_slot_ptr,
    sequences,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    PIECES: tl.constexpr = CHANNELS // COLUMNS
    c = tl.arange(0, COLUMNS)
    for task in range(tl.program_id(0), sequences * PIECES, tl.num_programs(0)):
        column = (task % PIECES) * COLUMNS + c
        sequence = task // PIECES
        has_state = tl.load(has_state_ptr + sequence)
        row0 = tl.cast(tl.load(first_row_ptr + sequence), tl.int64)
        read = tl.cast(tl.load(read_slot_ptr + sequence), tl.int64) * ((WIDTH - 1) * CHANNELS)
        for store in range(tl.load(store_begin_ptr + sequence), tl.load(store_begin_ptr + sequence + 1)):
            done = tl.load(store_rows_ptr + store)
            write = tl.cast(tl.load(store_slot_ptr + store), tl.int64) * ((WIDTH - 1) * CHANNELS)
            # Ascending rows: a state that moves within its own slot reads each input before it is overwritten.
            for j in range(0, WIDTH - 1):
                back = done + j - (WIDTH - 1)
                here = (column < CHANNELS) & (back >= 0)
                before = (column < CHANNELS) & ((back < 0) & (has_state > 0))
                # One of the two is zero; in fp32, because neither device adds bf16 vectors.
                fresh = tl.load(row_ptr + (row0 + back) * STRIDE + column, mask=here, other=0.0).to(tl.float32)
                kept = tl.load(state_ptr + read + (back + WIDTH - 1) * CHANNELS + column, mask=before, other=0.0).to(
                    tl.float32
                )
                tl.store(state_ptr + write + j * CHANNELS + column, (fresh + kept).to(state_ptr.dtype.element_ty))
