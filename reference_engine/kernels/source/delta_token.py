"""Gated delta rule, token by token: exact, and a state can be stored after any token."""

import triton
import triton.language as tl


@triton.jit
def delta_token_kernel(
    query_ptr,  # [rows, KEY_HEADS, KEY_DIM], rows QUERY_STRIDE apart
    key_ptr,  # the same, KEY_STRIDE
    value_ptr,  # [rows, VALUE_HEADS, VALUE_DIM], rows VALUE_STRIDE apart
    gate_ptr,  # [rows, VALUE_HEADS] fp32: log of the decay
    beta_ptr,  # [rows, VALUE_HEADS] fp32
    out_ptr,  # [rows, VALUE_HEADS, VALUE_DIM]
    state_ptr,  # [slots, VALUE_HEADS, KEY_DIM, VALUE_DIM] fp32
    first_row_ptr,  # [sequences] int32
    read_slot_ptr,
    has_state_ptr,
    store_begin_ptr,  # [sequences + 1] int32
    store_rows_ptr,  # [stores] int32
    store_slot_ptr,
    sequences,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
):
    PIECES: tl.constexpr = VALUE_DIM // COLUMNS
    SLOT: tl.constexpr = VALUE_HEADS * KEY_DIM * VALUE_DIM
    k = tl.arange(0, KEY_DIM)
    for task in range(tl.program_id(0), sequences * VALUE_HEADS * PIECES, tl.num_programs(0)):
        column = (task % PIECES) * COLUMNS + tl.arange(0, COLUMNS)
        head = (task // PIECES) % VALUE_HEADS
        sequence = task // (PIECES * VALUE_HEADS)
        key_head = head // (VALUE_HEADS // KEY_HEADS)
        first_row = tl.load(first_row_ptr + sequence)
        read = tl.cast(tl.load(read_slot_ptr + sequence), tl.int64) * SLOT
        cell = head * (KEY_DIM * VALUE_DIM) + k[:, None] * VALUE_DIM + column[None, :]
        carried = (tl.load(has_state_ptr + sequence) > 0) & (k >= 0)
        state = tl.load(state_ptr + read + cell, mask=carried[:, None], other=0.0)
        done = 0
        for store in range(tl.load(store_begin_ptr + sequence), tl.load(store_begin_ptr + sequence + 1)):
            until = tl.load(store_rows_ptr + store)
            for t in range(done, until):
                row = tl.cast(first_row + t, tl.int64)
                query = tl.load(query_ptr + row * QUERY_STRIDE + key_head * KEY_DIM + k).to(tl.float32)
                key = tl.load(key_ptr + row * KEY_STRIDE + key_head * KEY_DIM + k).to(tl.float32)
                value = tl.load(value_ptr + row * VALUE_STRIDE + head * VALUE_DIM + column).to(tl.float32)
                gate = tl.load(gate_ptr + row * VALUE_HEADS + head)
                beta = tl.load(beta_ptr + row * VALUE_HEADS + head)
                state = state * tl.exp(gate)
                change = (value - tl.sum(state * key[:, None], 0)) * beta
                state = state + key[:, None] * change[None, :]
                mixed = tl.sum(state * query[:, None], 0)
                tl.store(
                    out_ptr + row * (VALUE_HEADS * VALUE_DIM) + head * VALUE_DIM + column,
                    mixed.to(out_ptr.dtype.element_ty),
                )
            write = tl.cast(tl.load(store_slot_ptr + store), tl.int64) * SLOT
            tl.store(state_ptr + write + cell, state)
            done = until
