"""Options of `llama_cpp.Llama` under its own names.

Defaults are llama-cpp-python 0.3.36's except n_ctx (512 there) and the KV types (f16 there, see `kv_types`).
"""

from __future__ import annotations

from pydantic import Field

from adapters.base import Options
from adapters.llama_cpp.kv_types import KvType


class LlamaCppPythonOptions(Options):
    """What `EngineSpec.options` may say."""

    n_ctx: int = Field(8192, gt=0)
    """Cells of the KV cache in tokens."""
    n_batch: int = Field(512, gt=0)
    """Tokens per call of llama_decode: one prefill step."""
    n_ubatch: int = Field(512, gt=0)
    """Tokens per forward inside a step."""
    n_threads: int | None = Field(None, gt=0)
    """Threads for prefill and decode; None: the package's choice (all cores for prefill, half for decode)."""
    swa_full: bool = True
    """Keep every position of sliding-window layers. Without it 0.3.36 reuses positions the window has dropped."""
    type_k: KvType = "auto"
    type_v: KvType = "auto"
    flash_attn: bool = False
