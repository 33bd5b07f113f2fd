"""Operands for every kernel, and the comparison with the torch reference, whoever computes.

Pools are filled with NaN wherever nothing may be read; a read-only pool is compared bit for bit afterwards. Random
blocks, ragged lengths, prompts without a hit and calls of a single token are in every case that can have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from reference_engine.kernels.delta import DeltaRows
from reference_engine.kernels.interface import Kernels, TorchKernels, TritonKernels
from reference_engine.kernels.proofs.report import Check
from reference_engine.kernels.rotary import angle_tables
from reference_engine.kernels.shapes import (
    DecodeBatch,
    ExtendBatch,
    ExtendSequence,
    LayerPool,
    StateBatch,
    StateSequence,
    index_tensor,
    split_heads,
)

TOLERANCE = {torch.float32: 3e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Largest difference as a share of the largest reference value: attention and convolution."""
DELTA_TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 2e-2}
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One result beside its reference."""

    what: str
    error: float
    """Largest difference, as a share of the largest reference value; inf where either is not finite."""
    allowed: float


@dataclass(frozen=True, slots=True)
class Case:
    """One call of one operation."""

    name: str
    run: Callable[[TritonKernels], list[Comparison]]


def compare(what: str, got: Tensor, expected: Tensor, allowed: float) -> Comparison:
    """`allowed` 0: bit for bit."""
    got, expected = got.float().cpu(), expected.float().cpu()
    if not bool(torch.isfinite(got).all() & torch.isfinite(expected).all()):
        return Comparison(what, float("inf"), allowed)
    worst = float((got - expected).abs().max())
    return Comparison(what, worst / max(float(expected.abs().max()), 1e-30), allowed)


def unchanged(what: str, now: Tensor, before: Tensor) -> Comparison:
    """Bit for bit, NaN included."""
    same = torch.equal(now.view(torch.uint8).cpu(), before.view(torch.uint8).cpu())
    return Comparison(what, 0.0 if same else float("inf"), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Sizes of an attention layer."""

    kv_heads: int = 2
    group: int = 4
    head_dim: int = 64


class Operands:
    """Random tensors from one seed, made on the CPU so that every device gets the same."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal, in the case's type unless told otherwise."""
        return torch.randn(*shape, generator=self._generator).to(self.device, dtype or self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in [0, 1), fp32."""
        return torch.rand(*shape, generator=self._generator).to(self.device)

    def blocks(self, counts: Sequence[int], spare: int = 2) -> tuple[list[tuple[int, ...]], int]:
        """Disjoint random blocks per sequence, and how many blocks the pool has."""
        total = sum(counts) + spare
        order = torch.randperm(total, generator=self._generator).tolist()
        tables, used = [], 0
        for count in counts:
            tables.append(tuple(order[used : used + count]))
            used += count
        return tables, total

    def layer(
        self, heads: Heads, page: int, tables: Sequence[Sequence[int]], lens: Sequence[int], total: int
    ) -> LayerPool:
        """Keys and values at the positions `[0, lens[i])` of each table, NaN elsewhere."""
        pools = []
        for _ in range(2):
            pool = torch.full((total * page, heads.kv_heads, heads.head_dim), torch.nan)
            for table, length in zip(tables, lens, strict=True):
                slots = torch.tensor([table[at // page] * page + at % page for at in range(length)], dtype=torch.int64)
                pool[slots] = torch.randn(length, heads.kv_heads, heads.head_dim, generator=self._generator)
            pools.append(pool.to(self.device, self.dtype))
        return LayerPool(keys=pools[0], values=pools[1], page=page)


def equality(proof: str, case: Case, kernels: TritonKernels) -> Check:
    """Run one case."""
    results = case.run(kernels)
    broken = [
        f"{each.what}: {each.error:.3g} where {each.allowed:.3g} is allowed"
        for each in results
        if each.error > each.allowed
    ]
    return Check(proof, case.name, tuple(broken), {each.what: each.error for each in results})


def extend_case(
    dtype: torch.dtype,
    page: int,
    window: int | None,
    hits: Sequence[int],
    counts: Sequence[int],
    heads: Heads,
    device: torch.device,
) -> Case:
    """Prefill of ragged sequences."""

    def run(kernels: TritonKernels) -> list[Comparison]:
        make = Operands(device, dtype)
        tables, total = make.blocks([-(-hit // page) for hit in hits])
        layer = make.layer(heads, page, tables, hits, total)
        firsts = [sum(counts[:index]) for index in range(len(counts))]
        batch = ExtendBatch.of(
            [ExtendSequence(*each) for each in zip(firsts, counts, hits, tables, strict=True)], page, device
        )
        # One packed projection, as an engine has it: queries, keys and values are views with its row stride.
        packed = make.normal(sum(counts), heads.kv_heads * (heads.group + 2), heads.head_dim)
        queries, keys, values = split_heads(packed, heads.kv_heads, heads.group)
        before = layer.keys.clone(), layer.values.clone()
        scale = heads.head_dim**-0.5
        got = kernels.extend(queries, keys, values, layer, batch, scale, window)
        expected = TorchKernels().extend(queries, keys, values, layer, batch, scale, window)
        return [
            compare("attention", got, expected, TOLERANCE[dtype]),
            unchanged("cached keys", layer.keys, before[0]),
            unchanged("cached values", layer.values, before[1]),
        ]

    name = f"extend {NAMES[dtype]} page {page} window {window} hits {list(hits)} new {list(counts)} {_words(heads)}"
    return Case(name, run)


def hit_case(
    dtype: torch.dtype, page: int, window: int | None, heads: Heads, device: torch.device, *, on_grid: bool
) -> Case:
    """One prompt cold and after a hit: the same bits where the hit is on the kernel's grid, and only there."""

    def run(kernels: TritonKernels) -> list[Comparison]:
        make, grid = Operands(device, dtype), kernels.hit_grid(heads.head_dim, page)
        hit = 2 * grid if on_grid else grid + 5
        length = hit + grid + 7
        packed = make.normal(length, heads.kv_heads * (heads.group + 2), heads.head_dim)
        parts = split_heads(packed, heads.kv_heads, heads.group)
        tables, total = make.blocks([-(-hit // page)])
        pool = torch.full((total * page, heads.kv_heads, heads.head_dim), torch.nan, device=device, dtype=dtype)
        layer = LayerPool(keys=pool, values=pool.clone(), page=page)
        slots = index_tensor([tables[0][at // page] * page + at % page for at in range(hit)], device)
        TorchKernels().write(parts[1][:hit], parts[2][:hit], layer, slots)
        scale, cold_batch = heads.head_dim**-0.5, ExtendBatch.of([ExtendSequence(0, length, 0, ())], page, device)
        cold = kernels.extend(*parts, layer, cold_batch, scale, window)[hit:]
        warm_batch = ExtendBatch.of([ExtendSequence(0, length - hit, hit, tables[0])], page, device)
        rest = parts[0][hit:], parts[1][hit:], parts[2][hit:]
        warm = kernels.extend(*rest, layer, warm_batch, scale, window)
        found = compare("warm against cold", warm, cold, 0.0 if on_grid else TOLERANCE[dtype])
        if on_grid or dtype is not torch.float32:
            return [found]
        differs = 0.0 if found.error > 0 else float("inf")
        return [found, Comparison("off the grid the bits do differ", differs, 0.0)]

    return Case(f"hit {'on' if on_grid else 'off'} the grid {NAMES[dtype]} page {page} window {window}", run)


def decode_case(
    dtype: torch.dtype, page: int, window: int | None, lens: Sequence[int], heads: Heads, device: torch.device
) -> Case:
    """One token of ragged sequences; and one of them alone, which must not differ by a bit."""

    def run(kernels: TritonKernels) -> list[Comparison]:
        make = Operands(device, dtype)
        tables, total = make.blocks([-(-length // page) for length in lens])
        layer = make.layer(heads, page, tables, lens, total)
        queries = make.normal(len(lens), heads.kv_heads * heads.group, heads.head_dim)
        batch, scale = DecodeBatch.of(lens, tables, page, device), heads.head_dim**-0.5
        before = layer.keys.clone(), layer.values.clone()
        got = kernels.decode(queries, layer, batch, scale, window)
        alone = kernels.decode(queries[1:2], layer, DecodeBatch.of(lens[1:2], tables[1:2], page, device), scale, window)
        return [
            compare("attention", got, TorchKernels().decode(queries, layer, batch, scale, window), TOLERANCE[dtype]),
            compare("alone against in company", alone, got[1:2], 0.0),
            unchanged("cached keys", layer.keys, before[0]),
            unchanged("cached values", layer.values, before[1]),
        ]

    return Case(f"decode {NAMES[dtype]} page {page} window {window} lens {list(lens)} {_words(heads)}", run)


def pool_case(dtype: torch.dtype, heads: Heads, device: torch.device) -> Case:
    """Writing rows of a packed projection, and copying blocks of several layers."""

    def run(kernels: TritonKernels) -> list[Comparison]:
        make, page, layers, blocks = Operands(device, dtype), 16, 3, 5
        pools = [make.normal(layers, blocks * page, heads.kv_heads, heads.head_dim) for _ in range(2)]
        expected = [pool.clone() for pool in pools]
        packed = make.normal(7, 2 * heads.kv_heads, heads.head_dim)
        keys, values = packed[:, : heads.kv_heads], packed[:, heads.kv_heads :]
        slots, pairs = index_tensor([5, 63, 0, 17, 33, 2, 79], device), ((0, 3), (2, 4), (0, 1))
        sides: list[tuple[Kernels, list[Tensor]]] = [(kernels, pools), (TorchKernels(), expected)]
        for each, (key_pool, value_pool) in sides:
            each.write(keys, values, LayerPool(keys=key_pool[1], values=value_pool[1], page=page), slots)
            each.copy_blocks(key_pool, value_pool, page, pairs)
        return [unchanged("keys", pools[0], expected[0]), unchanged("values", pools[1], expected[1])]

    return Case(f"write and copy {NAMES[dtype]} {_words(heads)}", run)


def rotary_case(dtype: torch.dtype, heads: Heads, rotary_dim: int, device: torch.device) -> Case:
    """Rotation at absolute positions, and a shift, which must agree with rotation at the new position."""

    def run(kernels: TritonKernels) -> list[Comparison]:
        make, page = Operands(device, dtype), 16
        positions, distances = [100, 101, 5000, 7, 8, 30000], [-37, 12, 0, -30000]
        frequencies = [10000.0 ** (-2 * index / rotary_dim) for index in range(rotary_dim // 2)]
        raw = make.normal(6, heads.kv_heads, heads.head_dim)
        cosine, sine = angle_tables(frequencies, range(30001), device)
        here = index_tensor(positions, device)
        got, expected = raw.clone(), raw.clone()
        kernels.rotate(got, None, here, cosine, sine)
        TorchKernels().rotate(expected, None, here, cosine, sine)
        result = [compare("rotated", got, expected, 3 * TOLERANCE[dtype] / 10)]
        pool = torch.full((2 * page, heads.kv_heads, heads.head_dim), torch.nan, device=device, dtype=dtype)
        slots, turns = index_tensor([0, 5, 9, 17, 18, 31], device), index_tensor([0, 0, 1, 2, 2, 3], device)
        pool[slots.long()] = expected
        kernels.rotate(pool, slots, turns, *angle_tables(frequencies, distances, device))
        moved = [at + distances[turn] for at, turn in zip(positions, turns.tolist(), strict=True)]
        afresh = raw.clone()
        TorchKernels().rotate(afresh, None, index_tensor(moved, device), cosine, sine)
        result.append(compare("shifted against rotated afresh", pool[slots.long()], afresh, TOLERANCE[dtype]))
        kept = torch.ones(2 * page, dtype=torch.bool, device=device)
        kept[slots.long()] = False
        untouched = 0.0 if bool(pool[kept].isnan().all()) else float("inf")
        return [*result, Comparison("other slots", untouched, 0.0)]

    return Case(f"rotary {NAMES[dtype]} {_words(heads)} rotary_dim {rotary_dim}", run)


STATES = (
    StateSequence(first_row=0, row_count=37, position=10, read_slot=1, stores=((6, 3), (22, 0), (37, 1))),
    StateSequence(first_row=37, row_count=5, position=0, read_slot=None, stores=((5, 2),)),
    StateSequence(first_row=42, row_count=1, position=32, read_slot=4, stores=((1, 5),)),
)
"""A resumed sequence with snapshots at positions 16 and 32, a fresh one, and one token that keeps what it read."""


def conv1d_case(dtype: torch.dtype, channels: int, width: int, device: torch.device) -> Case:
    """Packed sequences with a carried state and snapshots."""

    def run(kernels: TritonKernels) -> list[Comparison]:
        make, batch = Operands(device, dtype), StateBatch.of(STATES, device)
        rows, weight = make.normal(43, channels + 32)[:, :channels], make.normal(width, channels)
        states = make.normal(7, width - 1, channels)
        expected_states = states.clone()
        got = kernels.conv1d(rows, weight, states, batch)
        expected = TorchKernels().conv1d(rows, weight, expected_states, batch)
        return [
            compare("convolution", got, expected, TOLERANCE[dtype]),
            unchanged("states", states, expected_states),
        ]

    return Case(f"conv1d {NAMES[dtype]} channels {channels} width {width}", run)


def delta_case(form: str, dtype: torch.dtype, key_heads: int, value_heads: int, dim: int, device: torch.device) -> Case:
    """Packed sequences with a carried state and snapshots; rows 3 to 9 share one key, as repeated tokens do."""

    def run(kernels: TritonKernels) -> list[Comparison]:
        make, batch = Operands(device, dtype), StateBatch.of(STATES, device)
        keys = normalize(make.normal(43, key_heads, dim, dtype=torch.float32), dim=-1)
        keys[4:10] = keys[3]
        operands = DeltaRows(
            queries=(normalize(make.normal(43, key_heads, dim, dtype=torch.float32), dim=-1) * dim**-0.5).to(dtype),
            keys=keys.to(dtype),
            values=make.normal(43, value_heads, dim),
            gates=-0.3 * make.uniform(43, value_heads),
            betas=make.uniform(43, value_heads),
            states=make.normal(7, value_heads, dim, dim, dtype=torch.float32),
        )
        expected_states = operands.states.clone()
        same = DeltaRows(
            operands.queries, operands.keys, operands.values, operands.gates, operands.betas, expected_states
        )
        got = kernels.delta_token(operands, batch) if form == "token" else kernels.delta_chunk(operands, batch)
        expected = TorchKernels().delta_token(same, batch)
        kept = unchanged("states only read", operands.states[[4, 6]], expected_states[[4, 6]])
        return [
            compare("delta rule", got, expected, DELTA_TOLERANCE[dtype]),
            compare("states", operands.states, expected_states, DELTA_TOLERANCE[torch.float32]),
            kept,
        ]

    return Case(f"delta {form} {NAMES[dtype]} heads {key_heads}/{value_heads} dim {dim}", run)


def chunk_resume_case(dtype: torch.dtype, device: torch.device) -> Case:
    """A sequence in one go, and resumed from the state stored at a multiple of the chunk: the same bits."""

    def run(kernels: TritonKernels) -> list[Comparison]:
        make, dim, hit = Operands(device, dtype), 32, 2 * kernels.target.delta_chunk
        length = hit + kernels.target.delta_chunk + 3
        all_rows = DeltaRows(
            queries=normalize(make.normal(length, 1, dim, dtype=torch.float32), dim=-1).to(dtype),
            keys=normalize(make.normal(length, 1, dim, dtype=torch.float32), dim=-1).to(dtype),
            values=make.normal(length, 2, dim),
            gates=-0.3 * make.uniform(length, 2),
            betas=make.uniform(length, 2),
            states=torch.zeros(3, 2, dim, dim, device=device),
        )
        whole = StateSequence(0, length, 0, None, ((hit, 0), (length, 1)))
        cold = kernels.delta_chunk(all_rows, StateBatch.of([whole], device))[hit:]
        rest = StateSequence(0, length - hit, hit, 0, ((length - hit, 2),))
        warm = kernels.delta_chunk(all_rows.after(hit), StateBatch.of([rest], device))
        states = all_rows.states
        return [compare("warm against cold", warm, cold, 0.0), compare("end state", states[2], states[1], 0.0)]

    return Case(f"delta chunk resumed {NAMES[dtype]}", run)


Matrix = Literal["full", "part", "device", "brief"]


def all_cases(device: torch.device, *, matrix: Matrix) -> Iterator[Case]:
    """The cases of a proof.

    "full": number type x page x window for prefill. "part": one case per number type and per page with and without a
    window, for a proof that compiles each. "device": head sizes of real models in bf16, for a card. "brief": every
    operation once, for a dry run.
    """
    small = matrix != "device"
    few = Heads(kv_heads=2, group=2, head_dim=32) if small else Heads(kv_heads=2, group=4, head_dim=128)
    one = Heads(kv_heads=1, group=2, head_dim=32) if small else few
    for dtype, page, window in _prefills(matrix):
        yield extend_case(dtype, page, window, (0, 33, 80), (18, 9, 1), few, device)
    for head_dim, group in ((64, 3), (128, 4), (256, 8)):
        if matrix == "brief":
            break
        wide = Heads(kv_heads=1, group=group, head_dim=head_dim)
        yield extend_case(torch.bfloat16, 64, None, (65, 0), (19, 3), wide, device)
    for dtype, window in HIT_CASES[matrix]:
        yield hit_case(dtype, 64, window, one, device, on_grid=True)
    if matrix in ("full", "part"):
        yield hit_case(torch.float32, 16, None, one, device, on_grid=False)
    for page, window, dtype in DECODE_CASES[matrix]:
        yield decode_case(dtype, page, window, (1, 70, 700), few, device)
    if matrix != "brief":
        yield decode_case(torch.bfloat16, 64, None, (65, 3), Heads(kv_heads=1, group=6, head_dim=256), device)
    for dtype in (torch.float32, torch.bfloat16) if matrix == "full" else (torch.bfloat16,):
        yield pool_case(dtype, Heads(kv_heads=3, group=1, head_dim=64), device)
        yield conv1d_case(dtype, 96, 4, device)
    yield rotary_case(torch.float32, Heads(kv_heads=3, head_dim=64), 64, device)
    yield rotary_case(torch.bfloat16, Heads(kv_heads=2, head_dim=256), 64, device)
    for form in ("token", "chunk"):
        if small:
            yield delta_case(form, torch.float32, 1, 2, 32, device)
        if matrix != "brief":
            yield delta_case(form, torch.bfloat16, 2, 2 if small else 8, 64 if small else 128, device)
    yield chunk_resume_case(torch.float32, device)


HIT_CASES: dict[Matrix, tuple[tuple[torch.dtype, int | None], ...]] = {
    "full": ((torch.float32, None), (torch.float32, 40), (torch.bfloat16, None)),
    "part": ((torch.float32, None), (torch.bfloat16, 40)),
    "device": ((torch.bfloat16, None), (torch.bfloat16, 40)),
    "brief": ((torch.float32, None),),
}
DECODE_CASES: dict[Matrix, tuple[tuple[int, int | None, torch.dtype], ...]] = {
    "full": ((16, None, torch.float16), (64, 24, torch.bfloat16), (48, 550, torch.float32)),
    "part": ((16, 24, torch.float16), (48, 550, torch.float32)),
    "device": ((16, 550, torch.bfloat16), (64, None, torch.bfloat16)),
    "brief": ((16, 24, torch.float16),),
}


def _prefills(matrix: Matrix) -> Sequence[tuple[torch.dtype, int, int | None]]:
    """(type, page, window)"""
    if matrix == "device":
        return [(torch.bfloat16, page, window) for page in (16, 64) for window in (None, 24)]
    if matrix == "brief":
        return [(torch.bfloat16, 16, 24)]
    if matrix == "part":
        return [(torch.float32, 16, None), (torch.float16, 64, 24), (torch.bfloat16, 48, 24)]
    return list(product(NAMES, (16, 48, 64), (None, 24)))


def _words(heads: Heads) -> str:
    return f"heads {heads.kv_heads}x{heads.group} dim {heads.head_dim}"
