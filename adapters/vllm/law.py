"""Which law covers a vLLM as configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.registry import make_law
from reference_engine.laws.vllm.switches import VLLM
from vocabulary.errors import LawDoesNotCover, UsageError

VERSIONS = {switches.law_id.partition("@")[2]: switches for switches in VLLM}
BEYOND = {
    "kv_connector": "a KV connector",
    "prefill_checkpoints": "prefill checkpoints inside a chunk",
    "window_replay": "sliding windows rebuilt by replay",
    "state_at_junction": "states kept at junctions inside a block",
}
"""What the probe reports and no law follows."""
SAME_NAME = ("enable_prefix_caching", "max_num_batched_tokens")
SPECULATION = ("num_speculative_tokens", "disable_eagle_block_drop", "disable_lookahead_block_hashes")


def law_for(version: str, options: Mapping[str, Any], groups: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Law id and options from what the engine read back; LawDoesNotCover with the reason otherwise."""
    minor = ".".join(version.split(".")[:2])
    if minor not in VERSIONS:
        raise LawDoesNotCover(f"vllm {version}: laws are known for {', '.join(VERSIONS)}")
    if beyond := [words for name, words in BEYOND.items() if options.get(name)]:
        raise LawDoesNotCover(f"vllm {version}: no law with {beyond[0]}")
    if (ranks := options.get("decode_context_parallel_size", 1)) != 1:
        raise LawDoesNotCover(f"vllm {version}: no law with decode_context_parallel_size = {ranks}")
    law_id = f"vllm@{minor}"
    law_options = _options(version, VERSIONS[minor].options, options, groups)
    try:
        make_law(law_id, law_options)
    except UsageError as error:
        raise LawDoesNotCover(f"vllm {version}: {error}") from None
    return law_id, law_options


def limits(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What the law leaves out of this configuration."""
    if options.get("async_scheduling") and len(options.get("layer_groups", ())) > 1:
        return ("asynchronous scheduling frees windows and states later: evictions are not predicted for these groups",)
    return ()


def _options(
    version: str, known: tuple[str, ...], options: Mapping[str, Any], groups: tuple[str, ...]
) -> dict[str, Any]:
    texts = list(options.get("layer_groups", ()))
    if not texts and groups == ("full",):
        texts = [f"full:{options['block_size']}"]
    if not texts:
        kinds = " + ".join(groups) if groups else "unknown"
        raise LawDoesNotCover(f"vllm {version}: no law for layer groups {kinds} without their block sizes")
    if alien := [text for text in texts if not text.startswith(("full:", "swa:", "gdn:"))]:
        raise LawDoesNotCover(f"vllm {version}: no law for layer groups of {alien[0]}")
    law_options = {"groups": texts, "block_size": options["block_size"]}
    law_options |= {name: options[name] for name in SAME_NAME if options.get(name) is not None}
    recurrent = any(text.startswith("gdn:") for text in texts)
    if recurrent and options["enable_prefix_caching"]:
        law_options["mamba_cache_mode"] = options.get("mamba_cache_mode")
    if recurrent or any(text.startswith("swa:") for text in texts):
        law_options["prefix_cache_retention_interval"] = options.get("retention_interval")
    if options.get("prefix_match_unit") is not None:
        law_options["prefix_match_unit"] = options["prefix_match_unit"]
    if method := options.get("speculative_method"):
        if not options.get("num_speculative_tokens"):
            raise LawDoesNotCover(f"vllm {version}: no law with speculative decoding ({method}) of unknown length")
        law_options["method"] = method
        law_options |= {name: options[name] for name in SPECULATION if options.get(name) and name in known}
    if options.get("num_gpu_blocks") is not None and not limits(options):
        law_options["num_blocks"] = options["num_gpu_blocks"] - 1  # one is the null block, never handed out
    return law_options
