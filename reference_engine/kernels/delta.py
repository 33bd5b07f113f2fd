"""Gated delta rule over packed sequences with a carried state, in two forms.

    state = exp(gate) state;   state += key (beta (value - key . state));   out = query . state

`delta_token` follows that line token by token and may store a state after any of them. `delta_chunk` computes the same
in chunks cut at absolute multiples of the chunk length, so that a resumed sequence and a cold one take the same steps;
it stores states at those multiples and at the end only. The two forms round differently: compare within one form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from reference_engine.kernels.launch import Launch, programs_for
from reference_engine.kernels.shapes import HEAD_DIMS, KV_DTYPES, StateBatch, index_tensor, require, require_rows
from reference_engine.kernels.targets import Target


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRows:
    """The operands of one layer's call."""

    queries: Tensor  # [rows, key_heads, key_dim]
    keys: Tensor  # the same
    values: Tensor  # [rows, value_heads, value_dim]
    gates: Tensor  # [rows, value_heads] fp32: logarithm of the decay, not positive
    betas: Tensor  # [rows, value_heads] fp32
    states: Tensor  # [slots, value_heads, key_dim, value_dim] fp32

    def check(self, batch: StateBatch) -> None:
        """Raises KernelDoesNotCover."""
        rows, key_heads, key_dim = self.queries.shape
        _, value_heads, value_dim = self.values.shape
        require(self.values.dtype in KV_DTYPES, f"delta: type {self.values.dtype}")
        require(key_dim in HEAD_DIMS and value_dim in HEAD_DIMS, f"delta: key_dim {key_dim}, value_dim {value_dim}")
        require(value_heads % key_heads == 0, f"delta: {value_heads} value heads over {key_heads} key heads")
        require(rows == batch.rows, f"delta: {rows} rows, the batch has {batch.rows}")
        require_rows("queries", self.queries, (rows, key_heads, key_dim), self.values)
        require_rows("keys", self.keys, (rows, key_heads, key_dim), self.values)
        require_rows("values", self.values, (rows, value_heads, value_dim), self.values)
        for name, each in (("gates", self.gates), ("betas", self.betas)):
            require_rows(name, each, (rows, value_heads), self.gates.float())
            require(each.is_contiguous(), f"delta: {name} must be contiguous")
        states = (len(self.states), value_heads, key_dim, value_dim)
        require_rows("states", self.states, states, self.gates)
        require(self.states.is_contiguous(), "delta: states must be contiguous")

    def after(self, row: int) -> DeltaRows:
        """The rows from `row` on, over the same states."""
        rows = (each[row:] for each in (self.queries, self.keys, self.values, self.gates, self.betas))
        queries, keys, values, gates, betas = rows
        return DeltaRows(queries, keys, values, gates, betas, self.states)

    @property
    def sizes(self) -> dict[str, int]:
        """Constants of every kernel of this family."""
        _, key_heads, key_dim = self.queries.shape
        _, value_heads, value_dim = self.values.shape
        return {"KEY_HEADS": key_heads, "VALUE_HEADS": value_heads, "KEY_DIM": key_dim, "VALUE_DIM": value_dim}


def delta_reference(operands: DeltaRows, batch: StateBatch) -> Tensor:
    """As `Kernels.delta_token` and, up to rounding, `Kernels.delta_chunk`."""
    group = operands.values.shape[1] // operands.queries.shape[1]
    queries, keys = (each.float().repeat_interleave(group, 1) for each in (operands.queries, operands.keys))
    out = torch.zeros(operands.values.shape, dtype=operands.values.dtype, device=operands.values.device)
    for each in batch.sequences:
        empty = torch.zeros_like(operands.states[0])
        state = empty if each.read_slot is None else operands.states[each.read_slot].clone()
        slots = dict(each.stores)
        for done in range(1, each.row_count + 1):
            row = each.first_row + done - 1
            state = state * operands.gates[row].exp()[:, None, None]
            held = torch.einsum("hkv,hk->hv", state, keys[row])
            change = (operands.values[row].float() - held) * operands.betas[row][:, None]
            state = state + keys[row][:, :, None] * change[:, None, :]
            out[row] = torch.einsum("hkv,hk->hv", state, queries[row]).to(out.dtype)
            if done in slots:
                operands.states[slots[done]] = state
    return out


def delta_token_triton(launch: Launch, target: Target, operands: DeltaRows, batch: StateBatch) -> Tensor:
    """As `Kernels.delta_token`."""
    from reference_engine.kernels.source.delta_token import delta_token_kernel

    sizes, values = operands.sizes, operands.values
    columns = min(target.delta_columns, sizes["VALUE_DIM"])
    out = torch.empty(values.shape, dtype=values.dtype, device=values.device)
    tasks = len(batch.sequences) * sizes["VALUE_HEADS"] * (sizes["VALUE_DIM"] // columns)
    launch(
        delta_token_kernel,
        programs_for(target, tasks, matrix=False),
        {
            "query_ptr": operands.queries,
            "key_ptr": operands.keys,
            "value_ptr": values,
            "gate_ptr": operands.gates,
            "beta_ptr": operands.betas,
            "out_ptr": out,
            "state_ptr": operands.states,
            "first_row_ptr": batch.first_row,
            "read_slot_ptr": batch.read_slot,
            "has_state_ptr": batch.has_state,
            "store_begin_ptr": batch.store_begin,
            "store_rows_ptr": batch.store_rows,
            "store_slot_ptr": batch.store_slot,
            "sequences": len(batch.sequences),
        },
        {
            **sizes,
            "COLUMNS": columns,
            "QUERY_STRIDE": operands.queries.stride(0),
            "KEY_STRIDE": operands.keys.stride(0),
            "VALUE_STRIDE": values.stride(0),
        },
        warps=4,
        stages=1,
    )
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """A batch cut at absolute multiples of the chunk length."""

    count: int
    first_row: Tensor  # [count] int32
    rows: Tensor  # [count] int32
    of_sequence: Tensor  # [sequences] int32: its first chunk
    store_behind: Tensor  # [stores] int32: all chunks of the sequence before this one are in the state
    row_of_cell: Tensor  # [count, chunk] int64, the first row where there is none
    held: Tensor  # [count, chunk] bool


@lru_cache(maxsize=8)
def chunks_of(batch: StateBatch, chunk: int) -> Chunks:
    """Raises KernelDoesNotCover for a store that is neither on the grid nor at a sequence's end."""
    spans: list[tuple[int, int]] = []
    first_chunk, behind = [], []
    for each in batch.sequences:
        first_chunk.append(len(spans))
        number_behind = {}
        done = 0
        while done < each.row_count:
            stop = min(done + chunk - (each.position + done) % chunk, each.row_count)
            spans.append((each.first_row + done, stop - done))
            number_behind[stop] = len(spans)
            done = stop
        for stored, slot in each.stores:
            require(
                stored in number_behind,
                f"delta chunk: a state for slot {slot} at position {each.position + stored}, off the grid of {chunk}",
            )
            behind.append(number_behind[stored])
    device = batch.first_row.device
    first_row, rows = (index_tensor([span[side] for span in spans], device) for side in (0, 1))
    cell = torch.arange(chunk, device=device)
    held = cell < rows[:, None]
    return Chunks(
        count=len(spans),
        first_row=first_row,
        rows=rows,
        of_sequence=index_tensor(first_chunk, device),
        store_behind=index_tensor(behind, device),
        row_of_cell=torch.where(held, first_row[:, None] + cell, first_row[:, None]).long(),
        held=held,
    )


def delta_chunk_triton(launch: Launch, target: Target, operands: DeltaRows, batch: StateBatch) -> Tensor:
    """As `Kernels.delta_chunk`."""
    from reference_engine.kernels.source.delta_chunk import (
        delta_outputs_kernel,
        delta_prepare_kernel,
        delta_states_kernel,
    )

    chunk, chunks, sizes = target.delta_chunk, chunks_of(batch, target.delta_chunk), operands.sizes
    key_dim, value_dim, heads = sizes["KEY_DIM"], sizes["VALUE_DIM"], sizes["VALUE_HEADS"]
    columns = min(target.delta_chunk_columns, key_dim, value_dim)
    values, device = operands.values, operands.values.device
    held = chunks.held[:, :, None]  # [chunks, chunk, 1]
    gates = torch.where(held, operands.gates[chunks.row_of_cell], 0.0)  # [chunks, chunk, value_heads]
    decay = gates.cumsum(1).transpose(1, 2).contiguous()  # [chunks, value_heads, chunk]
    beta = torch.where(held, operands.betas[chunks.row_of_cell], 0.0).transpose(1, 2).contiguous()
    w = torch.empty((chunks.count, heads, chunk, key_dim), dtype=torch.float32, device=device)
    change = torch.empty((chunks.count, heads, chunk, value_dim), dtype=torch.float32, device=device)
    before = torch.empty((chunks.count, heads, key_dim, value_dim), dtype=torch.float32, device=device)
    out = torch.empty(values.shape, dtype=values.dtype, device=device)
    rows = {"chunk_row_ptr": chunks.first_row, "chunk_rows_ptr": chunks.rows}
    shape: dict[str, int | str] = {**sizes, "CHUNK": chunk, "COLUMNS": columns, "PRECISION": target.state_precision}
    key_stride = {"KEY_STRIDE": operands.keys.stride(0)}
    launch(
        delta_prepare_kernel,
        programs_for(target, chunks.count * heads, matrix=True),
        {
            "key_ptr": operands.keys,
            "value_ptr": values,
            "decay_ptr": decay,
            "beta_ptr": beta,
            "w_ptr": w,
            "u_ptr": change,
            **rows,
            "chunks": chunks.count,
        },
        {
            **shape,
            **key_stride,
            "PRECISION": target.solve_precision,
            "LEVELS": chunk.bit_length() - 1,
            "VALUE_STRIDE": values.stride(0),
        },
        warps=4,
        stages=1,
    )
    launch(
        delta_states_kernel,
        programs_for(target, len(batch.sequences) * heads * (value_dim // columns), matrix=True),
        {
            "key_ptr": operands.keys,
            "decay_ptr": decay,
            "w_ptr": w,
            "change_ptr": change,
            "before_ptr": before,
            "state_ptr": operands.states,
            **rows,
            "read_slot_ptr": batch.read_slot,
            "has_state_ptr": batch.has_state,
            "store_begin_ptr": batch.store_begin,
            "store_chunk_ptr": chunks.store_behind,
            "store_slot_ptr": batch.store_slot,
            "sequence_chunk_ptr": chunks.of_sequence,
            "sequences": len(batch.sequences),
        },
        {**shape, **key_stride},
        warps=4,
        stages=1,
    )
    launch(
        delta_outputs_kernel,
        programs_for(target, chunks.count * heads * (value_dim // columns), matrix=True),
        {
            "query_ptr": operands.queries,
            "key_ptr": operands.keys,
            "decay_ptr": decay,
            "change_ptr": change,
            "before_ptr": before,
            "out_ptr": out,
            **rows,
            "chunks": chunks.count,
        },
        {**shape, **key_stride, "QUERY_STRIDE": operands.queries.stride(0)},
        warps=4,
        stages=1,
    )
    return out
