"""Operands of the kernels, checked once on the host: nothing here touches a device to find a mistake.

Lengths and offsets are in tokens. A slot is a token's place in the KV pool, a block `page` slots in a row; state slots
are places in a pool of recurrent states, live ones and snapshots alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from vocabulary.errors import UsageError

HEAD_DIMS = (16, 32, 64, 128, 256)
KV_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class KernelDoesNotCover(UsageError):
    """A shape, type or layout that the chosen kernels do not compute; no other kernel is tried instead."""


def require(condition: bool, what: str) -> None:
    """Raise KernelDoesNotCover with `what` unless the condition holds."""
    if not condition:
        raise KernelDoesNotCover(what)


def require_rows(name: str, rows: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    """Rows of `shape` whose trailing dimensions are contiguous (the row stride is free), in the type of `like`."""
    require(tuple(rows.shape) == shape, f"{name}: shape {tuple(rows.shape)}, expected {shape}")
    require(
        rows.dtype is like.dtype and rows.device == like.device,
        f"{name}: {rows.dtype} on {rows.device}, expected {like.dtype} on {like.device}",
    )
    inner = [prod(shape[axis + 1 :]) for axis in range(1, len(shape))]
    require(list(rows.stride()[1:]) == inner, f"{name}: strides {rows.stride()} do not end in {inner}")


def index_tensor(
    values: Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.int32]], device: torch.device
) -> Tensor:
    """int32 on `device`."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)).to(device)


def split_heads(packed: Tensor, kv_heads: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, as views, of a packed projection `[n, kv_heads * (group + 2), head_dim]`."""
    heads = kv_heads * group
    return packed[:, :heads], packed[:, heads : heads + kv_heads], packed[:, heads + kv_heads :]


@dataclass(frozen=True, slots=True, eq=False)
class LayerPool:
    """One layer's keys and values."""

    keys: Tensor  # [pool_tokens, kv_heads, head_dim], contiguous
    values: Tensor  # the same
    page: int
    """Slots in a block; `pool_tokens` is a multiple of it."""

    def __post_init__(self) -> None:
        tokens, _, head_dim = self.keys.shape
        require(self.values.shape == self.keys.shape, f"pool: values {self.values.shape}, keys {self.keys.shape}")
        require(self.keys.is_contiguous() and self.values.is_contiguous(), "pool: a layer must be contiguous")
        require(self.keys.dtype in KV_DTYPES and self.values.dtype is self.keys.dtype, f"pool: type {self.keys.dtype}")
        require(head_dim in HEAD_DIMS, f"pool: head_dim {head_dim} is none of {HEAD_DIMS}")
        require(self.page > 0 and tokens % self.page == 0, f"pool: {tokens} slots are no multiple of page {self.page}")

    @property
    def kv_heads(self) -> int:
        """Heads of a slot."""
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class ExtendSequence:
    """Rows `[first_row, first_row + row_count)` of a packed call, at positions `[hit_len, hit_len + row_count)`."""

    first_row: int
    row_count: int
    hit_len: int
    blocks: tuple[int, ...]
    """Blocks that hold positions `[0, hit_len)`, in order; more may follow."""


@dataclass(frozen=True, slots=True, eq=False)
class ExtendBatch:
    """What every layer of one prefill call shares; made with `of`."""

    sequences: tuple[ExtendSequence, ...]
    page: int
    first_row: Tensor  # [n] int32
    row_count: Tensor  # [n] int32
    hit_len: Tensor  # [n] int32
    block_table: Tensor  # [n, max_blocks] int32

    @classmethod
    def of(cls, sequences: Sequence[ExtendSequence], page: int, device: torch.device) -> ExtendBatch:
        """Raises KernelDoesNotCover for an empty sequence or too few blocks."""
        require(len(sequences) > 0, "extend: no sequence")
        for each in sequences:
            require(each.row_count > 0 and each.hit_len >= 0, f"extend: {each} has no row or a negative hit")
            require(
                len(each.blocks) * page >= each.hit_len, f"extend: {len(each.blocks)} blocks for hit {each.hit_len}"
            )
        _require_packed([(each.first_row, each.row_count) for each in sequences])
        return cls(
            sequences=tuple(sequences),
            page=page,
            first_row=index_tensor([each.first_row for each in sequences], device),
            row_count=index_tensor([each.row_count for each in sequences], device),
            hit_len=index_tensor([each.hit_len for each in sequences], device),
            block_table=_table([each.blocks for each in sequences], device),
        )

    @property
    def rows(self) -> int:
        """Rows of a packed operand."""
        return max(each.first_row + each.row_count for each in self.sequences)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBatch:
    """One token each of n sequences, whose keys and values lie in the pool already; made with `of`."""

    lens: tuple[int, ...]
    """Keys of each sequence, its own token's included."""
    page: int
    lens_on_device: Tensor  # [n] int32
    block_table: Tensor  # [n, max_blocks] int32

    @classmethod
    def of(cls, lens: Sequence[int], blocks: Sequence[Sequence[int]], page: int, device: torch.device) -> DecodeBatch:
        """Raises KernelDoesNotCover for an empty sequence or too few blocks."""
        require(len(lens) == len(blocks) > 0, f"decode: {len(lens)} lengths, {len(blocks)} block tables")
        for length, row in zip(lens, blocks, strict=True):
            require(0 < length <= len(row) * page, f"decode: length {length} with {len(row)} blocks of {page}")
        return cls(
            lens=tuple(lens),
            page=page,
            lens_on_device=index_tensor(list(lens), device),
            block_table=_table(blocks, device),
        )


@dataclass(frozen=True, slots=True)
class StateSequence:
    """One sequence of a recurrent layer: rows of a packed call, a state to start from, states to store."""

    first_row: int
    row_count: int
    position: int
    """Absolute position of the first row."""
    read_slot: int | None
    """State after position `position - 1`; only read. None: the empty state."""
    stores: tuple[tuple[int, int], ...]
    """(rows done, slot): the state after that many of the rows goes into the slot. Ascending; the last one ends it."""


@dataclass(frozen=True, slots=True, eq=False)
class StateBatch:
    """What every recurrent layer of one call shares; made with `of`."""

    sequences: tuple[StateSequence, ...]
    first_row: Tensor  # [n] int32
    read_slot: Tensor  # [n] int32; 0 where has_state is 0
    has_state: Tensor  # [n] int32, 0 or 1
    store_begin: Tensor  # [n + 1] int32: stores of sequence i are [begin[i], begin[i + 1])
    store_rows: Tensor  # [stores] int32
    store_slot: Tensor  # [stores] int32

    @classmethod
    def of(cls, sequences: Sequence[StateSequence], device: torch.device) -> StateBatch:
        """Raises KernelDoesNotCover where two programs would meet in one slot, or the stores do not end the rows."""
        require(len(sequences) > 0, "state: no sequence")
        _require_packed([(each.first_row, each.row_count) for each in sequences])
        written = [slot for each in sequences for _, slot in each.stores]
        require(len(set(written)) == len(written), f"state: a slot is stored twice: {written}")
        for each in sequences:
            rows = [done for done, _ in each.stores]
            ends = bool(rows) and rows[-1] == each.row_count and rows[0] > 0
            require(ends and rows == sorted(set(rows)), f"state: stores at rows {rows} of {each.row_count}")
            others = set(written) - {slot for _, slot in each.stores}
            require(each.read_slot not in others, f"state: slot {each.read_slot} is read and stored by two sequences")
            early = {slot for _, slot in each.stores[:-1]}
            require(each.read_slot not in early, f"state: slot {each.read_slot} is overwritten before the end")
        begins = np.cumsum([0, *(len(each.stores) for each in sequences)])
        return cls(
            sequences=tuple(sequences),
            first_row=index_tensor([each.first_row for each in sequences], device),
            read_slot=index_tensor([each.read_slot or 0 for each in sequences], device),
            has_state=index_tensor([int(each.read_slot is not None) for each in sequences], device),
            store_begin=index_tensor(begins.astype(np.int32), device),
            store_rows=index_tensor([done for each in sequences for done, _ in each.stores], device),
            store_slot=index_tensor(written, device),
        )

    @property
    def rows(self) -> int:
        """Rows of a packed operand."""
        return max(each.first_row + each.row_count for each in self.sequences)


def _require_packed(spans: Sequence[tuple[int, int]]) -> None:
    """The spans (first row, rows) follow each other from row 0 on: every row of the call is somebody's."""
    ends = [first + count for first, count in spans]
    require([first for first, _ in spans] == [0, *ends[:-1]], f"rows of the sequences are not packed: {spans}")


def _table(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Ragged rows of block numbers, filled up with block 0, which is never read there."""
    table = np.zeros((len(rows), max(1, *map(len, rows))), np.int32)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return index_tensor(table, device)
