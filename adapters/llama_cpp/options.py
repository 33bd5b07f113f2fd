"""Options of llama-server under llama.cpp's own names, and how each is handed over.

Defaults are for a repeatable prefix-cache measurement and differ from llama-server's where a default
makes the outcome depend on history or on batch shapes (checked with llama.cpp b11549):

    n_parallel = 1       the server's own default is four slots: a prompt below the similarity threshold then
                         goes to an empty slot and hits nothing
    cache_ram_mib = 0    the RAM cache (8192 MiB by default) is consulted only for some requests, and only a new start
                         of the server clears it
    flash_attn = "off"   without it warm and cold logits agree to 1e-6; the CPU's flash attention rounds K and V to
                         16 bits and moves a log-probability by up to 2e-3 with the batch shape
    type_k = "auto"      f32 for a float32 checkpoint, else llama.cpp's f16
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adapters.base import Options
from adapters.llama_cpp.kv_types import KvType

LOG_SHOWS_POSITIONS = 4
"""Verbosity from which the log has a line with the first position of every prefill step."""


class LlamaCppOptions(Options):
    """What `EngineSpec.options` may say about llama-server; in attach mode, what the user knows about the server."""

    n_ctx: int = Field(8192, gt=0)
    """Cells of the KV cache in tokens, divided among the slots."""
    n_parallel: int = Field(1, gt=0)
    """Slots."""
    cache_ram_mib: int = Field(0, ge=-1)
    """Host-memory prompt cache in MiB; 0: off, -1: no limit."""
    cache_idle_slots: bool = True
    """Copy idle slots to that cache whenever a request starts, and empty them if `kv_unified`."""
    n_cache_reuse: int = Field(0, ge=0)
    """Shortest chunk in tokens that may be moved to another position; 0: off. Moved chunks are approximate."""
    n_ctx_checkpoints: int = Field(32, ge=0)
    """Context checkpoints per slot, for sliding-window and recurrent layers."""
    checkpoint_min_step: int = Field(8192, ge=0)
    """Least distance of checkpoints in tokens."""
    swa_full: bool = False
    """Keep every position of sliding-window layers."""
    n_batch: int = Field(2048, gt=0)
    """Tokens per prefill step."""
    n_ubatch: int = Field(512, gt=0)
    """Tokens per forward; also the distance of the checkpoint before a prompt's end."""
    slot_prompt_similarity: float = Field(0.1, ge=0, le=1)
    """A slot is chosen by its content when it holds more than this fraction of the prompt; 0: never."""
    n_threads: int | None = Field(None, gt=0)
    """Threads for prefill and decode; None: llama.cpp's choice, the physical cores."""
    type_k: KvType = "auto"
    type_v: KvType = "auto"
    kv_unified: bool = False
    """One range of cells for all slots."""
    flash_attn: Literal["on", "off", "auto"] = "off"
    verbosity: int = Field(LOG_SHOWS_POSITIONS, ge=0, le=5)
    """Log level; below 4 the position start is read from the reply instead of the log."""
