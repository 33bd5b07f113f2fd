"""The numbers of `config.json` that the decoder needs, for the architectures it implements."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabulary.errors import UsageError

SUPPORTED = ("llama", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A dense decoder-only model with grouped-query attention; lengths in elements or tokens."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    context_len: int
    rope_theta: float
    norm_eps: float
    tied_head: bool
    """The output matrix is the embedding."""
    stored_dtype: str

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head before the rotation (Qwen3)."""
        return self.model_type == "qwen3"

    @classmethod
    def read(cls, directory: Path) -> ModelConfig:
        """Read `config.json` as transformers 4 and 5 write it.

        Raises UsageError for an architecture, activation, bias or rope scaling that the decoder does not implement.
        """
        path = directory / "config.json"
        try:
            raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read ({error}); make it again with `hitparity model make`") from None
        if raw.get("model_type") not in SUPPORTED:
            raise UsageError(
                f"{path}: model_type {raw.get('model_type')!r} is not supported by the reference engine; "
                f"supported: {', '.join(SUPPORTED)}"
            )
        _refuse_unsupported(path, raw)
        try:
            return cls(
                model_type=raw["model_type"],
                layers=raw["num_hidden_layers"],
                hidden=raw["hidden_size"],
                heads=raw["num_attention_heads"],
                kv_heads=raw["num_key_value_heads"],
                head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
                intermediate=raw["intermediate_size"],
                vocab_size=raw["vocab_size"],
                context_len=raw["max_position_embeddings"],
                rope_theta=float(_rope(raw).get("rope_theta") or raw["rope_theta"]),
                norm_eps=raw["rms_norm_eps"],
                tied_head=raw.get("tie_word_embeddings", False),
                stored_dtype=raw.get("dtype") or raw["torch_dtype"],
            )
        except KeyError as error:
            raise UsageError(f"{path}: key {error} is missing; make the model folder again") from None


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """The rope section: transformers 5 calls it `rope_parameters`, 4 `rope_scaling` with theta beside it."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _refuse_unsupported(path: Path, raw: dict[str, Any]) -> None:
    rope = _rope(raw)
    kind = rope.get("rope_type", rope.get("type", "default"))
    wanted = {
        "rope scaling": (kind, "default"),
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "attention_bias": (raw.get("attention_bias", False), False),
        "mlp_bias": (raw.get("mlp_bias", False), False),
        "use_sliding_window": (raw.get("use_sliding_window", False), False),
    }
    for key, (found, implemented) in wanted.items():
        if found != implemented:
            raise UsageError(
                f"{path}: {key} = {found!r} is not implemented by the reference engine (only {implemented!r}); "
                f"use another model or another engine"
            )
