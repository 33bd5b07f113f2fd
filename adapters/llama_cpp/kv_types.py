"""Types of llama.cpp's KV cache, for both llama.cpp adapters."""

from __future__ import annotations

from typing import Literal

KvType = Literal["auto", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"]


def kv_type(asked: KvType, weights_dtype: str) -> str:
    """ "auto" resolved: f32 for float32 weights, so that no rounding separates engines; else llama.cpp's own f16."""
    if asked != "auto":
        return asked
    return "f32" if weights_dtype == "float32" else "f16"
