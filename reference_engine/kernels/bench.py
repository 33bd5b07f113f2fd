"""Times of the kernels on a device, beside the device's own copy and matrix product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from reference_engine.kernels.delta import DeltaRows
from reference_engine.kernels.interface import Kernels
from reference_engine.kernels.rotary import angle_tables
from reference_engine.kernels.shapes import (
    DecodeBatch,
    ExtendBatch,
    ExtendSequence,
    LayerPool,
    StateBatch,
    StateSequence,
    index_tensor,
)

KV_HEADS, GROUP, HEAD_DIM = 8, 4, 128
"""An attention layer of Llama 3 8B or Qwen3 8B."""
KEY_HEADS, VALUE_HEADS, STATE_DIM, CHANNELS = 16, 32, 128, 8192
"""A linear layer of Qwen3-Next."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the measured calls are."""

    unit: int
    """Tokens of the smallest quantity: 1,024 on a device, a few in a dry run."""
    kv_heads: int
    head_dim: int
    state_heads: tuple[int, int]
    state_dim: int
    channels: int
    copy_bytes: int
    matrix: int


DEVICE_SIZES = Sizes(1024, KV_HEADS, HEAD_DIM, (KEY_HEADS, VALUE_HEADS), STATE_DIM, CHANNELS, 2 << 30, 8192)
DRY_SIZES = Sizes(8, 1, 32, (1, 2), 16, 32, 1 << 20, 64)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device reaches with its own operators."""

    copy_tb_s: float
    """Bytes read and written per second by a copy."""
    matmul_tflop_s: float
    """Of a square bf16 product."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured call."""

    name: str
    ms: float
    """Median."""
    tb_s: float
    tflop_s: float
    copy_share: float
    """Of the copy ceiling."""
    matmul_share: float


def median_ms(call: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """Median milliseconds of a call, after three that are not counted; by the device's own clock where it has one."""
    for _ in range(3 if repeats > 1 else 1):
        call()
    if device.type == "cpu":
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)
    runtime = torch.get_device_module(device)
    marks = [(runtime.Event(enable_timing=True), runtime.Event(enable_timing=True)) for _ in range(repeats)]
    for begin_mark, end_mark in marks:
        begin_mark.record()
        call()
        end_mark.record()
    runtime.synchronize()
    return float(statistics.median(begin_mark.elapsed_time(end_mark) for begin_mark, end_mark in marks))


def ceilings(device: torch.device, sizes: Sizes, repeats: int) -> Ceilings:
    """Measured now, on this device."""
    copy_ms = _copy_ms(device, sizes.copy_bytes, repeats)
    matrix = torch.randn(sizes.matrix, sizes.matrix, device=device).bfloat16()
    matmul_ms = median_ms(lambda: matrix @ matrix, device, repeats)
    return Ceilings(2 * sizes.copy_bytes / copy_ms / 1e9, 2 * sizes.matrix**3 / matmul_ms / 1e9)


def _copy_ms(device: torch.device, size: int, repeats: int) -> float:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return median_ms(lambda: target.copy_(source), device, repeats)


def timings(kernels: Kernels, device: torch.device, sizes: Sizes, found: Ceilings, repeats: int) -> Iterator[Timing]:
    """Every kernel at the sizes of real serving; operands are freed before the next."""
    for name, make in _calls(kernels, device, sizes):
        call, moved, flops = make()
        ms = median_ms(call, device, repeats)
        tb_s, tflop_s = moved / ms / 1e9, flops / ms / 1e9
        yield Timing(name, ms, tb_s, tflop_s, tb_s / found.copy_tb_s, tflop_s / found.matmul_tflop_s)


Made = tuple[Callable[[], object], float, float]
"""A call, the bytes it must move, and its floating-point operations."""


def _calls(kernels: Kernels, device: torch.device, sizes: Sizes) -> Iterator[tuple[str, Callable[[], Made]]]:
    k = sizes.unit
    for page in (64, 16):
        yield (
            f"extend hit {16 * k} new {4 * k} page {page}",
            partial(_extend, kernels, device, sizes, [16 * k], [4 * k], page),
        )
    short = max(k // 8, 1)
    yield (
        f"extend 16 x hit {4 * k} new {short} page 64",
        lambda: _extend(kernels, device, sizes, [4 * k] * 16, [short] * 16, 64),
    )
    for count, length in ((64, 8 * k), (4, 64 * k)):
        yield f"decode {count} x {length} page 64", partial(_decode, kernels, device, sizes, count, length)
    yield f"write {16 * k}", lambda: _write(kernels, device, sizes)
    yield f"copy_blocks {16 * k}", lambda: _copy(kernels, device, sizes)
    yield f"rotary shift {16 * k}", lambda: _shift(kernels, device, sizes)
    yield f"conv1d {16 * k}", lambda: _conv1d(kernels, device, sizes)
    yield f"delta_token {2 * k}", lambda: _delta(kernels, device, sizes, 2 * k, chunked=False)
    yield f"delta_chunk {16 * k}", lambda: _delta(kernels, device, sizes, 16 * k, chunked=True)


def _random(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def _tables(lens: list[int], page: int) -> tuple[list[tuple[int, ...]], int]:
    counts = [-(-length // page) for length in lens]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)).tolist()
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    return [tuple(order[first : first + count]) for first, count in zip(firsts, counts, strict=True)], sum(counts)


def _layer(device: torch.device, sizes: Sizes, blocks: int, page: int) -> LayerPool:
    shape = (blocks * page, sizes.kv_heads, sizes.head_dim)
    return LayerPool(keys=_random(device, *shape), values=_random(device, *shape), page=page)


def _extend(
    kernels: Kernels, device: torch.device, sizes: Sizes, hits: list[int], counts: list[int], page: int
) -> Made:
    tables, blocks = _tables(hits, page)
    layer, rows, heads = _layer(device, sizes, blocks, page), sum(counts), sizes.kv_heads * GROUP
    queries = _random(device, rows, heads, sizes.head_dim)
    keys, values = (_random(device, rows, sizes.kv_heads, sizes.head_dim) for _ in range(2))
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    sequences = [ExtendSequence(*each) for each in zip(firsts, counts, hits, tables, strict=True)]
    batch = ExtendBatch.of(sequences, page, device)
    seen = sum(n * hit + n * (n + 1) / 2 for hit, n in zip(hits, counts, strict=True))
    held = sum(hit + n for hit, n in zip(hits, counts, strict=True))
    moved = 2 * (2 * held * sizes.kv_heads + 2 * rows * heads) * sizes.head_dim
    scale = sizes.head_dim**-0.5
    flops = 4 * heads * sizes.head_dim * seen
    return lambda: kernels.extend(queries, keys, values, layer, batch, scale, None), moved, flops


def _decode(kernels: Kernels, device: torch.device, sizes: Sizes, count: int, length: int) -> Made:
    page, heads = 64, sizes.kv_heads * GROUP
    tables, blocks = _tables([length] * count, page)
    layer = _layer(device, sizes, blocks, page)
    queries, batch = (
        _random(device, count, heads, sizes.head_dim),
        DecodeBatch.of([length] * count, tables, page, device),
    )
    moved = 4 * count * length * sizes.kv_heads * sizes.head_dim
    scale = sizes.head_dim**-0.5
    flops = 4 * heads * sizes.head_dim * count * length
    return lambda: kernels.decode(queries, layer, batch, scale, None), moved, flops


def _write(kernels: Kernels, device: torch.device, sizes: Sizes) -> Made:
    rows = 16 * sizes.unit
    layer = _layer(device, sizes, max(rows // 64, 1) + 1, 64)
    keys, values = (_random(device, rows, sizes.kv_heads, sizes.head_dim) for _ in range(2))
    slots = torch.randperm(rows, device=device).int()
    return lambda: kernels.write(keys, values, layer, slots), 2 * (keys.nbytes + values.nbytes), 0


def _copy(kernels: Kernels, device: torch.device, sizes: Sizes) -> Made:
    half, layers = max(16 * sizes.unit // 64, 1), 8
    keys, values = (_random(device, layers, 2 * half * 64, sizes.kv_heads, sizes.head_dim) for _ in range(2))
    pairs = [(index, half + index) for index in range(half)]
    return lambda: kernels.copy_blocks(keys, values, 64, pairs), keys.nbytes + values.nbytes, 0


def _shift(kernels: Kernels, device: torch.device, sizes: Sizes) -> Made:
    rows, half = 16 * sizes.unit, sizes.head_dim // 2
    keys = _random(device, rows, sizes.kv_heads, sizes.head_dim)
    slots, turns = torch.randperm(rows, device=device).int(), index_tensor([0] * rows, device)
    cosine, sine = angle_tables([10000.0 ** (-index / half) for index in range(half)], [-37], device)
    return lambda: kernels.rotate(keys, slots, turns, cosine, sine), 2 * keys.nbytes, 0


def _conv1d(kernels: Kernels, device: torch.device, sizes: Sizes) -> Made:
    rows = 16 * sizes.unit
    inputs, weight = _random(device, rows, sizes.channels), _random(device, 4, sizes.channels)
    states = _random(device, 2, 3, sizes.channels)
    batch = StateBatch.of([StateSequence(0, rows, 0, 0, ((rows, 1),))], device)
    return lambda: kernels.conv1d(inputs, weight, states, batch), 2 * inputs.nbytes, 0


def _delta(kernels: Kernels, device: torch.device, sizes: Sizes, rows: int, *, chunked: bool) -> Made:
    (key_heads, value_heads), dim = sizes.state_heads, sizes.state_dim
    operands = DeltaRows(
        queries=normalize(_random(device, rows, key_heads, dim), dim=-1),
        keys=normalize(_random(device, rows, key_heads, dim), dim=-1),
        values=_random(device, rows, value_heads, dim),
        gates=-0.1 * torch.rand(rows, value_heads, device=device),
        betas=torch.rand(rows, value_heads, device=device),
        states=torch.zeros(2, value_heads, dim, dim, device=device),
    )
    batch = StateBatch.of([StateSequence(0, rows, 0, 0, ((rows, 1),))], device)
    moved = 2 * operands.queries.nbytes + 2 * operands.values.nbytes
    flops = 6 * rows * value_heads * dim * dim  # of the rule itself, whatever a form computes beyond it
    call = kernels.delta_chunk if chunked else kernels.delta_token
    return lambda: call(operands, batch), moved, flops
