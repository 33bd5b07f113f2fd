"""TensorRT-LLM's laws: the C++ block manager (V1) and the radix tree of the second KV cache manager (V2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.entry import LawEntry, flag, layer_groups, positive
from reference_engine.laws.tensorrt_llm.v1 import TrtllmV1
from reference_engine.laws.tensorrt_llm.v2 import Settings, TrtllmV2
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import LayerGroup

DEFAULT_TOKENS_PER_BLOCK = 32  # llmapi KvCacheConfig, 1.2 to 1.4.0rc4


def _layout(law_id: str, options: Mapping[str, Any], pool_tokens: int | None) -> tuple[tuple[LayerGroup, ...], int]:
    """Layer groups and tokens per block; refuses what no rule here states."""
    if pool_tokens is not None:
        raise LawDoesNotCover(f"{law_id}: no law for a bounded pool; leave its size out (eviction is not stated)")
    groups = layer_groups(options)
    tokens_per_block = positive(options, "tokens_per_block", DEFAULT_TOKENS_PER_BLOCK)
    if tokens_per_block < 2 or tokens_per_block & (tokens_per_block - 1):
        raise LawDoesNotCover(
            f"{law_id}: tokens_per_block = {tokens_per_block}: a power of two greater than 1 is needed"
        )
    for group in groups:
        if group.block not in (None, tokens_per_block):
            raise LawDoesNotCover(
                f"{law_id}: layer group {group} and tokens_per_block = {tokens_per_block} differ; one size serves all"
            )
    return groups, tokens_per_block


def _v1(law_id: str, *, cyclic_windows: bool) -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        groups, tokens_per_block = _layout(law_id, options, pool_tokens)
        if any(group.kind == "gdn" for group in groups):
            raise LawDoesNotCover(f'{law_id}: no law for recurrent state; ask "tensorrt-llm@v2"')
        return TrtllmV1(
            law_id,
            tokens_per_block,
            groups,
            enable_block_reuse=flag(options, "enable_block_reuse", default=True),
            enable_partial_reuse=flag(options, "enable_partial_reuse", default=True),
            copy_on_partial_reuse=flag(options, "copy_on_partial_reuse", default=True),
            cyclic_windows=cyclic_windows,
        )

    return LawEntry(
        law_id,
        "full attention and sliding windows, unbounded pool, one beam; "
        + ("cyclic windows (before PR 6768)" if cyclic_windows else "linear windows (PR 6768 and later)"),
        ("tokens_per_block", "enable_block_reuse", "enable_partial_reuse", "copy_on_partial_reuse"),
        build,
    )


def _v2(law_id: str) -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        groups, tokens_per_block = _layout(law_id, options, pool_tokens)
        recurrent = any(group.kind == "gdn" for group in groups)
        policy = options.get("policy", "all_reusable")
        if policy not in ("all_reusable", "per_request") or (policy == "per_request" and recurrent):
            raise LawDoesNotCover(
                f"{law_id}: no law for policy = {policy!r}{' with recurrent state' if recurrent else ''}; it states "
                f"all_reusable, and per_request without recurrent state"
            )
        budget = options.get("max_num_tokens")
        settings = Settings(
            tokens_per_block=tokens_per_block,
            enable_block_reuse=flag(options, "enable_block_reuse", default=True),
            enable_partial_reuse=flag(options, "enable_partial_reuse", default=True),
            reuse_match_backoff=_natural(options, "reuse_match_backoff"),
            window_only=flag(options, "commit_min_snapshot", default=recurrent) or policy == "per_request",
            commit_at_end_only=policy == "per_request",
            periodic_snapshot_interval=_natural(options, "periodic_snapshot_interval"),
            offsets_from_start=_offsets(options, "additional_snapshot_offsets_from_start", least=1),
            offsets_from_end=_offsets(options, "additional_snapshot_offsets_from_end", least=0),
            sink_blocks=-(-_natural(options, "sink_token_length") // tokens_per_block),
            chunk_tokens=None if budget is None else positive(options, "max_num_tokens", 1),
        )
        if recurrent and not settings.window_only:
            raise LawDoesNotCover(
                f"{law_id}: commit_min_snapshot = false is refused by the engine with recurrent state"
            )
        if settings.chunk_tokens is not None and settings.chunk_tokens < tokens_per_block:
            raise LawDoesNotCover(f"{law_id}: max_num_tokens = {budget} is less than a block; no law for that")
        return TrtllmV2(law_id, groups, settings)

    return LawEntry(
        law_id,
        "full attention, sliding windows with sink tokens, recurrent snapshots; unbounded pool, requests one by one",
        (
            "tokens_per_block",
            "enable_block_reuse",
            "enable_partial_reuse",
            "reuse_match_backoff",
            "policy",
            "commit_min_snapshot",
            "periodic_snapshot_interval",
            "additional_snapshot_offsets_from_start",
            "additional_snapshot_offsets_from_end",
            "sink_token_length",
            "max_num_tokens",
        ),
        build,
    )


def _natural(options: Mapping[str, Any], key: str) -> int:
    """A whole number, 0 where absent."""
    value = options.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise LawDoesNotCover(f"{key} = {value!r}: a whole number from 0 is needed")
    return value


def _offsets(options: Mapping[str, Any], key: str, *, least: int) -> tuple[int, ...]:
    """A list of token offsets."""
    values = options.get(key, ())
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise LawDoesNotCover(f"{key} = {values!r}: a list of whole numbers is needed")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise LawDoesNotCover(f"{key}: {value!r} is not a whole number from {least}")
    return tuple(values)


ENTRIES = (
    _v1("tensorrt-llm@v1", cyclic_windows=False),
    _v1("tensorrt-llm@v1-cyclic", cyclic_windows=True),
    _v2("tensorrt-llm@v2"),
)
