"""Which law covers a vLLM as configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.vllm.switches import VLLM
from vocabulary.errors import LawDoesNotCover

VERSIONS = tuple(switches.law_id.partition("@")[2] for switches in VLLM)


def law_for(version: str, options: Mapping[str, Any], groups: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Law id and options from what the engine read back; LawDoesNotCover with the reason otherwise."""
    minor = ".".join(version.split(".")[:2])
    if minor not in VERSIONS:
        raise LawDoesNotCover(f"vllm {version}: laws are known for {', '.join(VERSIONS)}")
    if groups != ("full",):
        kinds = " + ".join(groups) if groups else "unknown"
        raise LawDoesNotCover(f"vllm {version}: no law for layer groups {kinds}, only for full attention")
    if method := options.get("speculative_method"):
        raise LawDoesNotCover(f"vllm {version}: no law with speculative decoding ({method})")
    if (unit := options.get("prefix_match_unit")) not in (None, options["block_size"]):
        raise LawDoesNotCover(f"vllm {version}: no law with prefix_match_unit = {unit}, other than the block size")
    law_options = {"block_size": options["block_size"], "enable_prefix_caching": options["enable_prefix_caching"]}
    if options.get("num_gpu_blocks") is not None:
        law_options["num_blocks"] = options["num_gpu_blocks"] - 1  # one is the null block, never handed out
    return f"vllm@{minor}", law_options
