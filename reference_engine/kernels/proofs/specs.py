"""Every kernel as a model's call would start it: recorded from the launches themselves, so that what is compiled is
what is launched. The operands have shapes and types only (torch's `meta` device).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reference_engine.kernels.delta import DeltaRows
from reference_engine.kernels.interface import TritonKernels
from reference_engine.kernels.launch import Arguments, Constants
from reference_engine.kernels.shapes import (
    DecodeBatch,
    ExtendBatch,
    ExtendSequence,
    KernelDoesNotCover,
    LayerPool,
    StateBatch,
    StateSequence,
    index_tensor,
    split_heads,
)
from reference_engine.kernels.targets import Target

META = torch.device("meta")
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True, slots=True)
class Spec:
    """One kernel with everything that decides its code."""

    name: str
    kernel: Any
    signature: dict[str, str]
    """Parameter to Triton type; `constexpr` for the constants."""
    constants: Constants
    aligned: tuple[str, ...]
    """Parameters divisible by 16, which Triton's launcher would tell the compiler."""
    warps: int
    stages: int


def signature_of(kernel: Any, arguments: Arguments) -> dict[str, str]:
    """Types of the kernel's parameters in their order, as Triton writes them."""
    return {name: _type(arguments[name]) if name in arguments else "constexpr" for name in kernel.arg_names}


class Recorder:
    """A launch that starts nothing and keeps what was asked for."""

    def __init__(self) -> None:
        self.specs: list[Spec] = []
        self.label = ""

    def __call__(
        self, kernel: Any, programs: int, arguments: Arguments, constants: Constants, *, warps: int, stages: int
    ) -> None:
        """As `Launch`."""
        aligned = tuple(
            name
            for name, value in arguments.items()
            if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)
        )
        name = f"{kernel.__name__.removesuffix('_kernel')} {self.label}".strip()
        signature = signature_of(kernel, arguments)
        self.specs.append(Spec(name, kernel, signature, constants, aligned, warps, stages))


def specs(target: Target) -> list[Spec]:
    """Kernels of common models on a target; a page size that the target refuses is left out."""
    recorder = Recorder()
    kernels = TritonKernels(target, recorder)
    for label, call in _calls(kernels):
        recorder.label = label
        try:
            call()
        except KernelDoesNotCover:
            if target.gather_pages:
                raise
    return recorder.specs


def _calls(kernels: TritonKernels) -> Iterator[tuple[str, Callable[[], object]]]:
    for head_dim, kv_heads, group, page, window in (
        (64, 3, 3, 16, None),  # SmolLM2
        (128, 8, 4, 64, None),  # Llama 3, Qwen3
        (128, 8, 4, 16, 1024),
        (256, 4, 2, 16, 1024),  # Gemma 3
        (256, 2, 8, 528, None),  # Qwen3-Next; the page of vLLM 0.30's hybrid cache
    ):
        layer = (head_dim, kv_heads, group, page, window)
        label = f"dim {head_dim} group {group} page {page}" + (f" window {window}" if window else "")
        yield label, partial(_extend, kernels, *layer)
        if page != 528:
            yield label, partial(_decode, kernels, *layer)
    yield "", partial(_pool, kernels)
    yield "partial", partial(_rotate, kernels, 256, 64)
    yield "", partial(_states, kernels)


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _layer(kv_heads: int, head_dim: int, page: int) -> LayerPool:
    pool = _meta(64 * page, kv_heads, head_dim)
    return LayerPool(keys=pool, values=pool, page=page)


def _extend(kernels: TritonKernels, head_dim: int, kv_heads: int, group: int, page: int, window: int | None) -> None:
    batch = ExtendBatch.of([ExtendSequence(0, 128, page, tuple(range(16)))], page, META)
    packed = _meta(128, kv_heads * (group + 2), head_dim)
    queries, keys, values = split_heads(packed, kv_heads, group)
    kernels.extend(queries, keys, values, _layer(kv_heads, head_dim, page), batch, head_dim**-0.5, window)


def _decode(kernels: TritonKernels, head_dim: int, kv_heads: int, group: int, page: int, window: int | None) -> None:
    batch = DecodeBatch.of([page * 16], [range(16)], page, META)
    queries = _meta(1, kv_heads * group, head_dim)
    kernels.decode(queries, _layer(kv_heads, head_dim, page), batch, head_dim**-0.5, window)


def _pool(kernels: TritonKernels) -> None:
    packed, pool = _meta(128, 48, 128), _meta(2, 1024, 8, 128)
    slots = index_tensor(range(128), META)
    kernels.write(packed[:, 32:40], packed[:, 40:], _layer(8, 128, 64), slots)
    kernels.copy_blocks(pool, pool, 64, [(0, 1)])


def _rotate(kernels: TritonKernels, head_dim: int, rotary_dim: int) -> None:
    table = _meta(16, rotary_dim // 2, dtype=torch.float32)
    index = index_tensor(range(16), META)
    kernels.rotate(_meta(16, 48, head_dim)[:, :40], None, index, table, table)
    kernels.rotate(_meta(1024, 8, head_dim), index, index, table, table)


def _states(kernels: TritonKernels) -> None:
    """Sizes of Qwen3-Next's linear layers: 16 key heads, 32 value heads of 128, 8,192 convolved channels."""
    batch = StateBatch.of([StateSequence(0, 128, 0, 0, ((64, 1), (128, 2)))], META)
    kernels.conv1d(_meta(128, 8192), _meta(4, 8192), _meta(4, 3, 8192), batch)
    mixed = _meta(128, 64, 128)
    operands = DeltaRows(
        queries=mixed[:, :16],
        keys=mixed[:, 16:32],
        values=mixed[:, 32:],
        gates=_meta(128, 32, dtype=torch.float32),
        betas=_meta(128, 32, dtype=torch.float32),
        states=_meta(4, 32, 128, 128, dtype=torch.float32),
    )
    kernels.delta_token(operands, batch)
    kernels.delta_chunk(operands, batch)


def _type(value: Tensor | int | float) -> str:
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"
