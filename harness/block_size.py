"""Block sizes of hybrids: a model's shape from its configuration file, all releases beside one another, published ones.

The derivation itself is `reference_engine.laws.vllm.block_size`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from reference_engine.laws.vllm.block_size import RELEASES, HybridBlock, HybridBytes, HybridShape, hybrid_block_size
from vocabulary.bounded import read_json
from vocabulary.errors import LawDoesNotCover, UsageError

PADDING_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """One release."""

    law_id: str
    block: HybridBlock | None
    stops: str | None = None
    """Why the engine would not start."""


SIZES = (
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "num_attention_heads",
    "num_key_value_heads",
)
"""Keys of config.json that are needed."""


def by_release(sizes: HybridBytes, law_ids: list[str], **how: Any) -> list[Derived]:
    """The block of every release named, or of all; keyword arguments as `hybrid_block_size` takes them."""
    found = []
    for law_id in law_ids or RELEASES:
        try:
            found.append(Derived(law_id=law_id, block=hybrid_block_size(law_id, sizes, **how)))
        except LawDoesNotCover as why:
            found.append(Derived(law_id=law_id, block=None, stops=str(why)))
    return found


def shape_of(config: Path, *, tp: int, kv_dtype_bytes: int, recurrent_dtype_bytes: int, drafts: int) -> HybridShape:
    """From a config.json of the Qwen3-Next and Qwen3.5 families; UsageError names the key it lacks.

    The convolution keeps `linear_conv_kernel_dim - 1` inputs and one per draft, in the type of the keys and values
    (vLLM, model_executor/layers/mamba/mamba_utils.py).
    """
    data = read_json(config)
    data = data.get("text_config", data) if isinstance(data, dict) else {}
    if not isinstance(data, dict):
        raise UsageError(f"{config}: key 'text_config' is no table; give the sizes as options instead of --config")
    for name in (*SIZES, "head_dim", "hidden_size"):
        if (value := data.get(name)) is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(f"{config}: key {name!r}: {value!r} is no positive whole number")
    try:
        key_dim = data["linear_num_key_heads"] * data["linear_key_head_dim"]
        value_dim = data["linear_num_value_heads"] * data["linear_value_head_dim"]
        width = data["linear_conv_kernel_dim"] - 1 + drafts
        heads = data["num_attention_heads"]
        return HybridShape(
            kv_heads=data["num_key_value_heads"],
            head_dim=data.get("head_dim") or data["hidden_size"] // heads,
            kv_dtype_bytes=kv_dtype_bytes,
            recurrent_heads=data["linear_num_value_heads"],
            recurrent_head_dims=(data["linear_key_head_dim"], data["linear_value_head_dim"]),
            recurrent_dtype_bytes=recurrent_dtype_bytes,
            conv_bytes_per_rank=(2 * key_dim + value_dim) // tp * width * kv_dtype_bytes,
            tp=tp,
        )
    except KeyError as key:
        raise UsageError(f"{config}: lacks {key}; give the sizes as options instead of --config") from None


@dataclass(frozen=True, slots=True)
class PublishedCheck:
    """Published block sizes derived again."""

    numbers: int
    differences: tuple[str, ...]


def check_published() -> PublishedCheck:
    """Every number of workloads/cases/published/block_size.toml."""
    path = Path(str(files("workloads"))) / "cases" / "published" / "block_size.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    inputs = data["inputs"]
    kernel_block = inputs.pop("kernel_block")
    dims = tuple(inputs.pop("recurrent_head_dims"))
    sizes = HybridShape(recurrent_head_dims=(dims[0], dims[1]), **inputs).bytes_per_rank()
    pairs = [(f"{key}", getattr(sizes, key), value) for key, value in data["derived"].items()]
    for law_id, stated in data["release"].items():
        pairs += _pairs(law_id, hybrid_block_size(law_id, sizes, kernel_block=kernel_block), stated)
    for report in data["report"]:
        law_id, source = report.pop("release"), report.pop("source")
        given = HybridBytes(**{key: report.pop(key) for key in ("k_per_token", "kv_per_token", "recurrent", "conv")})
        pairs += _pairs(f"{source}, {law_id}", hybrid_block_size(law_id, given), report)
    wrong = tuple(f"{name}: {got}, published {want}" for name, got, want in pairs if got != want)
    return PublishedCheck(len(pairs), wrong)


def _pairs(name: str, block: HybridBlock, stated: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    got = {key: getattr(block, key) for key in stated}
    if "padding" in got:
        got["padding"] = round(block.padding, PADDING_DIGITS)
    return [(f"{name} {key}", got[key], value) for key, value in stated.items()]
