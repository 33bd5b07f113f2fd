"""DeepInfer's law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.deepinfer.law import DeepInfer
from reference_engine.laws.deepinfer.replay import BLOCK, Consumers, Mode, Ring
from reference_engine.laws.entry import LawEntry, flag, layer_groups, positive
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import LayerGroup

ID = "deepinfer@0.1.0"


def _build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
    if pool_tokens is not None:
        raise LawDoesNotCover(f"{ID}: no law for a bounded pool; leave its size out (a full one preempts)")
    groups = layer_groups(options)
    for group in groups:
        if group.block not in (None, BLOCK):
            raise LawDoesNotCover(f"{ID}: layer group {group}: blocks are {BLOCK} tokens, fixed in the source")
    chunk = options.get("chunk_tokens")
    if (chunk is not None) != flag(options, "chunked_prefill", default=False):
        raise LawDoesNotCover(f"{ID}: chunked_prefill and chunk_tokens go together: true and a number, or neither")
    return DeepInfer(
        ID,
        groups,
        ring=_ring(options, groups),
        consumers=_consumers(options, groups),
        external_replay=_replay(options, groups),
        chunk_tokens=None if chunk is None else positive(options, "chunk_tokens", 1),
        context_parallel=positive(options, "cp", 1),
    )


def _ring(options: Mapping[str, Any], groups: tuple[LayerGroup, ...]) -> Ring | None:
    """The sliding window's ring; None without one."""
    windows = {group.window for group in groups if group.window is not None}
    if len(windows) > 1:
        raise LawDoesNotCover(f"{ID}: windows of {len(windows)} sizes; the checkpoint has one sliding_window")
    nextn = positive(options, "DEEPINFER_USE_NEXTN_DECODE", 5)
    back = max(positive(options, "DEEPINFER_MAX_BACKTRACKING_TOKENS", 1), nextn + 1)
    return Ring(windows.pop(), back) if windows else None


def _consumers(options: Mapping[str, Any], groups: tuple[LayerGroup, ...]) -> Consumers:
    """How the layers above the shared KV are cut short."""
    mode, ring = options.get("yoco_mode", "off"), _ring(options, groups)
    if mode not in list(Mode):
        raise LawDoesNotCover(f"{ID}: yoco_mode = {mode!r}: use one of {', '.join(Mode)}")
    keep = 0 if mode == Mode.OFF else positive(options, "keep_tokens", 140)
    if mode != Mode.OFF and (ring is None or keep < ring.slots):
        raise LawDoesNotCover(
            f"{ID}: keep_tokens = {keep} fails a check of the engine; it needs a sliding window and at least its ring, "
            f"{ring.slots if ring else 'window + backtracking'}"
        )
    return Consumers(Mode(mode), keep)


def _replay(options: Mapping[str, Any], groups: tuple[LayerGroup, ...]) -> int:
    """R: tokens in front of an external hit's end that are computed again."""
    if options.get("external_replay") is None:
        return 0
    replay, ring = positive(options, "external_replay", 1), _ring(options, groups)
    if ring is not None and replay < ring.slots:
        raise LawDoesNotCover(
            f"{ID}: external_replay = {replay} leaves a hole in the ring of {ring.slots} slots; replay at least those"
        )
    return replay


ENTRIES = (
    LawEntry(
        ID,
        "full attention, one sliding window, recurrent state by fork; requests without a lookup, injected hits, forks",
        (
            "external_replay",
            "yoco_mode",
            "keep_tokens",
            "chunked_prefill",
            "chunk_tokens",
            "cp",
            "DEEPINFER_USE_NEXTN_DECODE",
            "DEEPINFER_MAX_BACKTRACKING_TOKENS",
        ),
        _build,
    ),
)
