"""Token mixing by the kernels of `kernels/interface.py`: the same call, told in blocks instead of slots."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reference_engine.backend import AttentionStep, Backend, StateStep
from reference_engine.call import AttentionRows, Extend
from reference_engine.delta_rule import CHUNK
from reference_engine.kernels.delta import DeltaRows
from reference_engine.kernels.interface import Kernels
from reference_engine.kernels.shapes import DecodeBatch, ExtendBatch, ExtendSequence, LayerPool, StateBatch
from reference_engine.laws.base import Slots
from reference_engine.pools import KVPool, SlotIndex
from reference_engine.rotary import Rotary


class KernelBackend(Backend):
    """One implementation of the kernels."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def attention(self, rows: AttentionRows, positions: Tensor, rotary: Rotary, page: int) -> AttentionStep:
        """As `Backend.attention`; blocks of one token where the slots do not lie in whole blocks of `page`."""
        return _Attention(self.kernels, rows, positions, rotary, page)

    def recurrence(self, batch: StateBatch) -> StateStep:
        """As `Backend.recurrence`."""
        return _Recurrence(self.kernels, batch)


class _Attention(AttentionStep):
    def __init__(self, kernels: Kernels, rows: AttentionRows, positions: Tensor, rotary: Rotary, page: int) -> None:
        self.kernels, self.rotary, self.device = kernels, rotary, positions.device
        self.positions = positions.int()
        self.slots = torch.from_numpy(_host(rows.slots)).to(self.device, torch.int32)
        keys = [_host(extend.keys) for extend in rows.extends]
        whole = all(_whole(slots, extend.first_key, page) for slots, extend in zip(keys, rows.extends, strict=True))
        self.page = page if whole else 1
        blocks = [_blocks(slots, each.first_key, self.page) for slots, each in zip(keys, rows.extends, strict=True)]
        self.batch = _batch(rows.extends, blocks, self.page, self.device)

    def rotate(self, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        self.kernels.rotate(rows, None, self.positions, self.rotary.cosine, self.rotary.sine)
        return rows

    def write(self, keys: Tensor, values: Tensor, pool: KVPool, layer: int) -> None:
        self.kernels.write(keys, values, self._layer(pool, layer), self.slots)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, pool: KVPool, layer: int, scale: float, window: int | None
    ) -> Tensor:
        if isinstance(self.batch, DecodeBatch):
            mixed = self.kernels.decode(queries, self._layer(pool, layer), self.batch, scale, window)
        else:
            mixed = self.kernels.extend(queries, keys, values, self._layer(pool, layer), self.batch, scale, window)
        return mixed.flatten(1)

    def _layer(self, pool: KVPool, layer: int) -> LayerPool:
        return LayerPool(pool.keys[layer], pool.values[layer], self.page)


def _batch(
    extends: tuple[Extend, ...], blocks: list[tuple[int, ...]], page: int, device: torch.device
) -> ExtendBatch | DecodeBatch:
    counts = [each.rows.stop - each.rows.start for each in extends]
    if max(counts) == 1:
        return DecodeBatch.of([each.start + 1 for each in extends], blocks, page, device)
    sequences = [
        ExtendSequence(each.rows.start, count, each.start, own)
        for each, count, own in zip(extends, counts, blocks, strict=True)
    ]
    return ExtendBatch.of(sequences, page, device)


class _Recurrence(StateStep):
    def __init__(self, kernels: Kernels, batch: StateBatch) -> None:
        self.kernels, self.batch = kernels, batch
        long = any(each.row_count > 1 for each in batch.sequences)
        # The chunked kernel stores on its grid, which divides ours, and at the end; the other one anywhere.
        self.chunked = long and all(
            (each.position + done) % CHUNK == 0 for each in batch.sequences for done, _ in each.stores[:-1]
        )

    def conv(self, rows: Tensor, weight: Tensor, states: Tensor) -> Tensor:
        return self.kernels.conv1d(rows, weight, states, self.batch)

    def delta(self, operands: DeltaRows) -> Tensor:
        kernel = self.kernels.delta_chunk if self.chunked else self.kernels.delta_token
        return kernel(operands, self.batch)


def _host(index: SlotIndex) -> Slots:
    if isinstance(index, slice):
        return np.arange(index.start, index.stop)
    return index.cpu().numpy()


def _whole(slots: Slots, first_key: int, page: int) -> bool:
    """Whether every slot lies as deep in its block as its position does in its page."""
    places = np.arange(first_key, first_key + len(slots)) % page
    same = slots % page == places
    return bool(same.all()) and bool((np.diff(slots)[places[1:] > 0] == 1).all())


def _blocks(slots: Slots, first_key: int, page: int) -> tuple[int, ...]:
    """Block of each page from position 0 on; 0 for pages that a window has left behind and no kernel lets count."""
    ends = np.arange(first_key, first_key + len(slots)) // page
    table = np.zeros(int(ends[-1]) + 1, np.int64)
    table[ends] = slots // page
    return tuple(table.tolist())
