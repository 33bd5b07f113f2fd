"""Gated delta rule in chunks, in three kernels: what each chunk needs of itself, the states, the outputs.

Within a chunk of C tokens (rows i, j; S the state before it, all per value head):

    d[i] = sum of gates up to and with i            A[i, j] = beta[i] exp(d[i] - d[j]) k[i].k[j]   for j < i
    T = (1 + A)^-1                                  u = T (beta v)       w = T (beta exp(d) k)
    change = u - w S                                S' = exp(d[last]) S + sum_i exp(d[last] - d[i]) k[i] change[i]
    out[i] = exp(d[i]) q[i] S + sum_{j <= i} exp(d[i] - d[j]) (q[i].k[j]) change[j]

T is built by doubling: from the inverses of diagonal blocks of size b to those of size 2b by
inverse([[P, 0], [R, Q]]) = [[P', 0], [-Q' R P', Q']], for the whole matrix at once. That is as stable as forward
substitution (a power series of A is not: with equal keys its terms grow binomially) and needs no loop over rows.
"""

import triton
import triton.language as tl


@triton.jit
def delta_prepare_kernel(
    key_ptr,  # [rows, KEY_HEADS, KEY_DIM], rows KEY_STRIDE apart
    value_ptr,  # [rows, VALUE_HEADS, VALUE_DIM], rows VALUE_STRIDE apart
    decay_ptr,  # [chunks, VALUE_HEADS, CHUNK] fp32: d
    beta_ptr,  # [chunks, VALUE_HEADS, CHUNK] fp32, 0 behind the chunk's rows
    w_ptr,  # out: [chunks, VALUE_HEADS, CHUNK, KEY_DIM] fp32
    u_ptr,  # out: [chunks, VALUE_HEADS, CHUNK, VALUE_DIM] fp32
    chunk_row_ptr,  # [chunks] int32: first row of the call
    chunk_rows_ptr,  # [chunks] int32: rows, at most CHUNK
    chunks,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,  # CHUNK == 2 ** LEVELS
    COLUMNS: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i = tl.arange(0, CHUNK)
    c = tl.arange(0, COLUMNS)
    k = tl.arange(0, KEY_DIM)
    below = i[:, None] > i[None, :]
    for task in range(tl.program_id(0), chunks * VALUE_HEADS, tl.num_programs(0)):
        head = task % VALUE_HEADS
        chunk = task // VALUE_HEADS
        key_head = head // (VALUE_HEADS // KEY_HEADS)
        row0 = tl.cast(tl.load(chunk_row_ptr + chunk), tl.int64)
        inside = (i < tl.load(chunk_rows_ptr + chunk))[:, None]
        cell = tl.cast(task, tl.int64) * CHUNK
        decay = tl.load(decay_ptr + cell + i)
        beta = tl.load(beta_ptr + cell + i)
        key_at = key_ptr + row0 * KEY_STRIDE + key_head * KEY_DIM + i[:, None] * KEY_STRIDE
        key = tl.load(key_at + k[None, :], mask=inside, other=0.0)
        # The difference is taken under the mask: above the diagonal its exponential may overflow.
        ratio = tl.exp(tl.where(below, decay[:, None] - decay[None, :], 0.0))
        coupling = tl.dot(key, tl.trans(key), input_precision=PRECISION) * ratio * beta[:, None]
        inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
        for level in tl.static_range(LEVELS):
            # Blocks of 2 ** level: the lower left one of each pair on the diagonal.
            pair = (i[:, None] >> (level + 1)) == (i[None, :] >> (level + 1))
            low = pair & ((i[:, None] >> level) > (i[None, :] >> level))
            bridge = tl.where(low, coupling, 0.0)
            if level == 0:
                inverse = inverse - bridge
            else:
                left = tl.dot(inverse, bridge, input_precision=PRECISION)
                inverse = inverse - tl.dot(left, inverse, input_precision=PRECISION)
        weighted = beta * tl.exp(decay)
        for first in tl.static_range(0, KEY_DIM, COLUMNS):
            piece = tl.load(key_at + first + c[None, :], mask=inside, other=0.0).to(tl.float32) * weighted[:, None]
            w = tl.dot(inverse, piece, input_precision=PRECISION)
            tl.store(w_ptr + cell * KEY_DIM + i[:, None] * KEY_DIM + first + c[None, :], w)
        value_at = value_ptr + row0 * VALUE_STRIDE + head * VALUE_DIM + i[:, None] * VALUE_STRIDE
        for first in tl.static_range(0, VALUE_DIM, COLUMNS):
            piece = tl.load(value_at + first + c[None, :], mask=inside, other=0.0).to(tl.float32) * beta[:, None]
            u = tl.dot(inverse, piece, input_precision=PRECISION)
            tl.store(u_ptr + cell * VALUE_DIM + i[:, None] * VALUE_DIM + first + c[None, :], u)


@triton.jit
def delta_states_kernel(
    key_ptr,  # [rows, KEY_HEADS, KEY_DIM], rows KEY_STRIDE apart
    decay_ptr,  # [chunks, VALUE_HEADS, CHUNK] fp32
    w_ptr,  # [chunks, VALUE_HEADS, CHUNK, KEY_DIM] fp32
    change_ptr,  # in: u, out: change; [chunks, VALUE_HEADS, CHUNK, VALUE_DIM] fp32
    before_ptr,  # out: [chunks, VALUE_HEADS, KEY_DIM, VALUE_DIM] fp32: the state before each chunk
    state_ptr,  # [slots, VALUE_HEADS, KEY_DIM, VALUE_DIM] fp32
    chunk_row_ptr,  # [chunks] int32
    chunk_rows_ptr,
    read_slot_ptr,  # [sequences] int32
    has_state_ptr,
    store_begin_ptr,  # [sequences + 1] int32
    store_chunk_ptr,  # [stores] int32: the store lies behind all chunks before this one
    store_slot_ptr,
    sequence_chunk_ptr,  # [sequences] int32: first chunk of the sequence
    sequences,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    PIECES: tl.constexpr = VALUE_DIM // COLUMNS
    SLOT: tl.constexpr = VALUE_HEADS * KEY_DIM * VALUE_DIM
    i = tl.arange(0, CHUNK)
    k = tl.arange(0, KEY_DIM)
    for task in range(tl.program_id(0), sequences * VALUE_HEADS * PIECES, tl.num_programs(0)):
        column = (task % PIECES) * COLUMNS + tl.arange(0, COLUMNS)
        head = (task // PIECES) % VALUE_HEADS
        sequence = task // (PIECES * VALUE_HEADS)
        key_head = head // (VALUE_HEADS // KEY_HEADS)
        cell = k[:, None] * VALUE_DIM + column[None, :]
        read = tl.cast(tl.load(read_slot_ptr + sequence), tl.int64) * SLOT
        carried = (tl.load(has_state_ptr + sequence) > 0) & (k >= 0)
        state = tl.load(state_ptr + read + head * (KEY_DIM * VALUE_DIM) + cell, mask=carried[:, None], other=0.0)
        chunk = tl.load(sequence_chunk_ptr + sequence)
        for store in range(tl.load(store_begin_ptr + sequence), tl.load(store_begin_ptr + sequence + 1)):
            until = tl.load(store_chunk_ptr + store)
            for at in range(chunk, until):
                row0 = tl.cast(tl.load(chunk_row_ptr + at), tl.int64)
                rows = tl.load(chunk_rows_ptr + at)
                number = tl.cast(at, tl.int64) * VALUE_HEADS + head
                tl.store(before_ptr + number * (KEY_DIM * VALUE_DIM) + cell, state)
                w = tl.load(w_ptr + number * (CHUNK * KEY_DIM) + i[:, None] * KEY_DIM + k[None, :])
                change_at = change_ptr + number * (CHUNK * VALUE_DIM) + i[:, None] * VALUE_DIM + column[None, :]
                change = tl.load(change_at) - tl.dot(w, state, input_precision=PRECISION)
                tl.store(change_at, change)
                decay = tl.load(decay_ptr + number * CHUNK + i)
                last = tl.load(decay_ptr + number * CHUNK + CHUNK - 1)
                key = tl.load(
                    key_ptr + row0 * KEY_STRIDE + key_head * KEY_DIM + i[:, None] * KEY_STRIDE + k[None, :],
                    mask=(i < rows)[:, None],
                    other=0.0,
                ).to(tl.float32)
                key = key * tl.exp(last - decay)[:, None]
                state = state * tl.exp(last) + tl.dot(tl.trans(key), change, input_precision=PRECISION)
            write = tl.cast(tl.load(store_slot_ptr + store), tl.int64) * SLOT
            tl.store(state_ptr + write + head * (KEY_DIM * VALUE_DIM) + cell, state)
            chunk = until


@triton.jit
def delta_outputs_kernel(
    query_ptr,  # [rows, KEY_HEADS, KEY_DIM], rows QUERY_STRIDE apart
    key_ptr,  # the same, KEY_STRIDE
    decay_ptr,  # [chunks, VALUE_HEADS, CHUNK] fp32
    change_ptr,  # [chunks, VALUE_HEADS, CHUNK, VALUE_DIM] fp32
    before_ptr,  # [chunks, VALUE_HEADS, KEY_DIM, VALUE_DIM] fp32
    out_ptr,  # [rows, VALUE_HEADS, VALUE_DIM]
    chunk_row_ptr,  # [chunks] int32
    chunk_rows_ptr,
    chunks,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    PIECES: tl.constexpr = VALUE_DIM // COLUMNS
    OUT_ROW: tl.constexpr = VALUE_HEADS * VALUE_DIM
    i = tl.arange(0, CHUNK)
    k = tl.arange(0, KEY_DIM)
    upto = i[:, None] >= i[None, :]
    for task in range(tl.program_id(0), chunks * VALUE_HEADS * PIECES, tl.num_programs(0)):
        column = (task % PIECES) * COLUMNS + tl.arange(0, COLUMNS)
        head = (task // PIECES) % VALUE_HEADS
        chunk = task // (PIECES * VALUE_HEADS)
        key_head = head // (VALUE_HEADS // KEY_HEADS)
        row0 = tl.cast(tl.load(chunk_row_ptr + chunk), tl.int64)
        inside = (i < tl.load(chunk_rows_ptr + chunk))[:, None]
        number = tl.cast(chunk, tl.int64) * VALUE_HEADS + head
        query = tl.load(
            query_ptr + row0 * QUERY_STRIDE + key_head * KEY_DIM + i[:, None] * QUERY_STRIDE + k[None, :],
            mask=inside,
            other=0.0,
        )
        key = tl.load(
            key_ptr + row0 * KEY_STRIDE + key_head * KEY_DIM + i[:, None] * KEY_STRIDE + k[None, :],
            mask=inside,
            other=0.0,
        )
        decay = tl.load(decay_ptr + number * CHUNK + i)
        ratio = tl.exp(tl.where(upto, decay[:, None] - decay[None, :], 0.0))
        near = tl.where(upto, tl.dot(query, tl.trans(key), input_precision=PRECISION) * ratio, 0.0)
        change = tl.load(change_ptr + number * (CHUNK * VALUE_DIM) + i[:, None] * VALUE_DIM + column[None, :])
        before = tl.load(before_ptr + number * (KEY_DIM * VALUE_DIM) + k[:, None] * VALUE_DIM + column[None, :])
        far = tl.dot(query.to(tl.float32), before, input_precision=PRECISION) * tl.exp(decay)[:, None]
        mixed = far + tl.dot(near, change, input_precision=PRECISION)
        tl.store(
            out_ptr + row0 * OUT_ROW + head * VALUE_DIM + i[:, None] * OUT_ROW + column[None, :],
            mixed.to(out_ptr.dtype.element_ty),
            mask=inside,
        )
