"""Attention by torch_npu's own operators on Ascend, behind the same interface. Optional: needs torch_npu and CANN.

Not run here: no NPU is at hand. The operator and its layouts are those of vLLM-Ascend's attention backend
(snapshots of 2026-04 and 2026-08): `npu_fused_infer_attention_score` over a paged pool with a block table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from reference_engine.kernels import attention
from reference_engine.kernels.interface import TritonKernels
from reference_engine.kernels.launch import Launch, launch_triton
from reference_engine.kernels.shapes import DecodeBatch, LayerPool, require
from reference_engine.kernels.targets import Target
from vocabulary.errors import EngineUnavailable

PAGE_MULTIPLE = 16
"""The operator takes blocks of a multiple of 16 slots."""


class NpuKernels(TritonKernels):
    """Decode by the native operator where it covers the call; the rest is inherited.

    Prefill stays with Triton: the native operator wants the new keys in the pool, this interface hands them over beside
    it.
    """

    def __init__(self, target: Target, launch: Launch = launch_triton) -> None:
        super().__init__(target, launch)
        try:
            self._npu: Any = import_module("torch_npu")
        except ImportError as error:
            raise EngineUnavailable(
                f"backend npu: torch_npu cannot be loaded ({error}); install torch-npu beside CANN, or use triton"
            ) from None

    def decode(self, queries: Tensor, layer: LayerPool, batch: DecodeBatch, scale: float, window: int | None) -> Tensor:
        """As `Kernels.decode`; without a window, on pages of a multiple of 16."""
        attention.check_decode(queries, layer, batch, window)
        require(window is None, "backend npu: decode with a window; use backend triton")
        require(layer.page % PAGE_MULTIPLE == 0, f"backend npu: page {layer.page} is no multiple of {PAGE_MULTIPLE}")
        blocks = (-1, layer.page, layer.kv_heads * layer.head_dim)
        n, heads, head_dim = queries.shape
        mixed, _ = self._npu.npu_fused_infer_attention_score(
            queries.reshape(n, 1, heads * head_dim),  # layout BSH
            layer.keys.view(blocks),
            layer.values.view(blocks),
            num_heads=heads,
            num_key_value_heads=layer.kv_heads,
            input_layout="BSH",
            scale=scale,
            block_table=batch.block_table,
            block_size=layer.page,
            actual_seq_lengths_kv=list(batch.lens),
        )
        result: Tensor = mixed.view(n, heads, head_dim)
        return result
