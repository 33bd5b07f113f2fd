"""The named configurations: engines, layer groups and options, small enough that edges are met often.

Blocks are small, windows no multiple of them, and every configuration is drawn in variants: small chunk budgets, small
pools, other retention. `{}` is the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vocabulary.engine import Feature, Fidelity
from vocabulary.groups import parse_groups

VLLM = ("0.23", "0.26", "0.30", "0.32", "0.33")
VLLM_ASCEND = ("0.23", "0.26", "0.30")
MTP = {"method": "mtp", "num_speculative_tokens": 1}
CHUNK_OPTIONS = ("max_num_batched_tokens", "chunked_prefill_size", "n_ubatch", "n_batch", "prefix_match_unit")
"""Options whose value is a length near which something may change."""
FLA_CHUNK = 64
"""SGLang keeps recurrent states on a grid of at least this many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is fuzzed."""

    name: str
    engine: str
    """Law id."""
    groups: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[Mapping[str, Any], ...] = ({},)
    """Options on top, each for an equal share of the sequences."""
    against: Fidelity = Fidelity.LOOKUP
    longest: int = 400
    """Tokens of the longest prompt with its output."""
    longest_output: int = 70
    namespaces: bool = True
    lora: bool = False
    features: tuple[Feature, ...] = ()
    """Each is asked for by some requests."""

    @property
    def edges(self) -> tuple[int, ...]:
        """Lengths near which something may change: blocks, windows, chunks."""
        options = [dict(self.options) | dict(variant) for variant in self.variants]
        found = {number for group in parse_groups(self.groups) for number in (group.block, group.window) if number}
        found |= {int(each[name]) for each in options for name in CHUNK_OPTIONS if each.get(name)}
        found |= {int(each.get("page_size") or each.get("block_size") or 1) for each in options}
        if self.engine.startswith("sglang") and "gdn" in {str(group.kind) for group in parse_groups(self.groups)}:
            found.add(FLA_CHUNK)
        usable = {edge for edge in found if 1 < edge <= self.longest}
        return tuple(sorted(usable)) or (16,)


def configurations() -> tuple[Configuration, ...]:
    """All of them, in the order of `hitparity fuzz all`."""
    vllm = [each for version in VLLM for each in _vllm(f"vllm@{version}", version)]
    ascend = [each for version in VLLM_ASCEND for each in _vllm(f"vllm-ascend@{version}", version)]
    return (*vllm, *ascend, *_sglang("sglang@0.5.23"), *_llama_cpp("llama.cpp"))


def _vllm(engine: str, version: str) -> list[Configuration]:
    features = (Feature.PROMPT_LOGPROBS, Feature.SKIP_LOOKUP)
    chunk: dict[str, Any] = {"max_num_batched_tokens": 96}
    small: dict[str, Any] = {"num_gpu_blocks_override": 72, "max_model_len": 512}
    by_default = version in ("0.23", "0.26")  # dense, and no such option

    def variants(interval: int) -> tuple[dict[str, Any], ...]:
        """`interval` must be a multiple of the blocks."""
        kept: list[dict[str, Any]] = (
            [] if by_default else [{"prefix_cache_retention_interval": value} for value in (None, interval)]
        )
        return (chunk, *kept, chunk | small, *(chunk | each for each in kept))

    def make(name: str, groups: tuple[str, ...], *variants: Mapping[str, Any], **options: Any) -> Configuration:
        return Configuration(
            name=name, engine=engine, groups=groups, options=options, variants=({}, *variants), features=features,
            lora=name == "full",
        )  # fmt: skip

    hybrid, wide = variants(96), variants(128)
    found = [
        make("full", ("full:16",), chunk, {"num_gpu_blocks_override": 40, "max_model_len": 512}),
        make("full+swa", ("full:16", "swa:16:40"), *hybrid),
        make("full+swa, blocks of 32 and 16", ("full:32", "swa:16:40"), *hybrid),
        make("full+gdn", ("full:32", "gdn:32"), *hybrid),
        make("full+swa+gdn", ("full:32", "swa:32:48", "gdn:32"), *hybrid),
        make("full, mtp", ("full:16",), chunk, {"num_gpu_blocks_override": 40, "max_model_len": 512}, **MTP),
        make("full+gdn, mtp", ("full:32", "gdn:32"), *hybrid, **MTP),
        make("full+swa, eagle", ("full:16", "swa:16:40"), *hybrid, method="eagle", num_speculative_tokens=2),
    ]
    if version != "0.23":
        found += [
            make("full+gdn, unit 16", ("full:64", "gdn:64"), *wide, prefix_match_unit=16),
            make("full+gdn, unit 16, mtp", ("full:64", "gdn:64"), *wide, prefix_match_unit=16, **MTP),
        ]
    return found


def _sglang(engine: str) -> list[Configuration]:
    chunk = {"chunked_prefill_size": 128}
    pool = {"max_total_tokens": 2048}
    no_buffer = {"page_size": 1, "mamba_radix_cache_strategy": "no_buffer"}
    extra = {"mamba_radix_cache_strategy": "extra_buffer"}

    def make(name: str, groups: tuple[str, ...], *variants: Mapping[str, Any], **options: Any) -> Configuration:
        return Configuration(
            name=name, engine=engine, groups=groups, options=options, variants=variants, longest=600,
            features=(Feature.PROMPT_LOGPROBS,),
        )  # fmt: skip

    return [
        *(make(f"full, page {page}", ("full",), {}, chunk, pool, page_size=page) for page in (1, 16, 64)),
        make("full, EAGLE keys", ("full",), {"page_size": 1}, {"page_size": 16}, speculative_algorithm="EAGLE"),
        make("full+swa", ("full", "swa:128"), {"page_size": 1}, {"page_size": 16} | chunk, {"page_size": 1} | chunk),
        make("full+gdn, no_buffer", ("full", "gdn"), {}, chunk, **no_buffer),
        make("full+gdn, extra_buffer", ("full", "gdn"), {"page_size": 1}, {"page_size": 16} | chunk, **extra),
    ]


def _llama_cpp(engine: str) -> list[Configuration]:
    one: dict[str, Any] = {"n_parallel": 1, "cache_ram_mib": 0, "n_ubatch": 64, "n_batch": 256}
    slots, ram = one | {"n_parallel": 3}, one | {"cache_ram_mib": 8192}
    none, full, shifting = {"n_ctx_checkpoints": 0}, {"swa_full": True}, {"n_cache_reuse": 128}

    def make(name: str, groups: tuple[str, ...], *variants: Mapping[str, Any]) -> Configuration:
        return Configuration(
            name=name, engine=engine, groups=groups, variants=variants, against=Fidelity.SERVED, longest=700,
            longest_output=12, namespaces=False,
        )  # fmt: skip

    return [
        make("plain", ("full",), one, slots, ram, one | shifting),
        make("swa", ("full", "swa:128"), one, one | none, one | full, slots, ram),
        make("gdn", ("full", "gdn"), one, one | none, slots, ram),
    ]
