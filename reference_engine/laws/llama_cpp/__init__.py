"""The laws of llama.cpp's server and of llama-cpp-python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.entry import LawEntry, flag, given, layer_groups, positive, share
from reference_engine.laws.llama_cpp.in_process import ContextOptions, LlamaCppPython
from reference_engine.laws.llama_cpp.memory import CELL_PADDING
from reference_engine.laws.llama_cpp.ram_cache import (
    MIB,
    MOST_BYTES_PER_STATE,
    MOST_BYTES_PER_TOKEN,
    RamCache,
    StateBytes,
)
from reference_engine.laws.llama_cpp.server import LlamaCppServer, ServerOptions
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import Kind, LayerGroup

CHECKPOINTS = ("n_ctx_checkpoints", "ctx_checkpoints")
"""The library's and the command line's name of one option."""
SIZES = ("state_bytes_per_token", "window_bytes_per_token", "recurrent_state_bytes")
"""Bytes of a copied sequence: per position in full layers, per cell in window layers, per recurrent state."""


def _server() -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        slots = positive(options, "n_parallel", 1)
        unified = flag(options, "kv_unified", default=False)
        n_ctx_slot = _n_ctx_slot(options, pool_tokens, 1 if unified else slots)
        n_batch = _at_most(positive(options, "n_batch", 2048), n_ctx_slot, 1 if unified else slots)
        made = ServerOptions(
            groups=_groups(LlamaCppServer.id, options),
            n_parallel=slots,
            slot_prompt_similarity=share(options, "slot_prompt_similarity", 0.1),
            n_ctx_slot=n_ctx_slot,
            n_batch=n_batch,
            n_ubatch=min(n_batch, positive(options, "n_ubatch", 512)),
            n_ctx_checkpoints=_checkpoints(options),
            checkpoint_min_step=_count(options, "checkpoint_min_step", 8192),
            swa_full=flag(options, "swa_full", default=False),
            n_cache_reuse=_count(options, "n_cache_reuse", 0),
            kv_unified=unified,
            cache_idle_slots=flag(options, "cache_idle_slots", default=True),
        )
        _refuse(made, options)
        return LlamaCppServer(made, _ram_cache(made, options))

    return LawEntry(
        LlamaCppServer.id,
        "full attention, sliding windows beside it, or recurrent states (of models whose positions cannot be shifted); "
        "slots, RAM cache, checkpoints, chunk reuse; prompts of token IDs, no id_slot",
        (
            "n_parallel", "slot_prompt_similarity", "n_ctx", "n_ctx_slot", "n_batch", "n_ubatch", *CHECKPOINTS,
            "checkpoint_min_step", "swa_full", "n_cache_reuse", "kv_unified", "cache_ram_mib", "cache_idle_slots",
            *SIZES,
        ),
        build,
    )  # fmt: skip


def _in_process() -> LawEntry:
    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        n_ctx = given(options, "n_ctx") or pool_tokens
        n_batch = _at_most(positive(options, "n_batch", 512), n_ctx, 1)
        return LlamaCppPython(
            ContextOptions(
                groups=_groups(LlamaCppPython.id, options),
                n_ctx=n_ctx,
                n_batch=n_batch,
                n_ubatch=min(n_batch, positive(options, "n_ubatch", 512)),
                swa_full=flag(options, "swa_full", default=True),
            )
        )

    return LawEntry(
        LlamaCppPython.id,
        "full attention, sliding windows beside it, or recurrent states; hits without a whole window included",
        ("n_ctx", "n_batch", "n_ubatch", "swa_full"),
        build,
    )


def _groups(law_id: str, options: Mapping[str, Any]) -> tuple[LayerGroup, ...]:
    """At most full layers, and either one window or recurrent states; blocks are the engines' other than this one."""
    groups = layer_groups(options)
    kinds = [group.kind for group in groups]
    if any(group.block not in (None, 1) for group in groups):
        raise LawDoesNotCover(f"{law_id}: keeps single tokens; write groups without a block, such as swa:128")
    if len(set(kinds)) != len(kinds) or {Kind.SWA, Kind.GDN} <= set(kinds):
        raise LawDoesNotCover(
            f"{law_id}: no law for layer groups {', '.join(map(str, groups))}, only for full attention with one window "
            f"or with recurrent states"
        )
    return groups


def _n_ctx_slot(options: Mapping[str, Any], pool_tokens: int | None, streams: int) -> int | None:
    """Tokens of one slot: as named, or its padded part of `n_ctx`."""
    n_ctx_slot, n_ctx = given(options, "n_ctx_slot"), given(options, "n_ctx")
    if n_ctx_slot is not None:
        return n_ctx_slot
    if pool_tokens is not None:
        return pool_tokens // streams
    if n_ctx is None:
        return None
    padded = -(-n_ctx // CELL_PADDING) * CELL_PADDING
    return -(-(padded // streams) // CELL_PADDING) * CELL_PADDING


def _at_most(n_batch: int, n_ctx: int | None, streams: int) -> int:
    """A step is no longer than the context."""
    return n_batch if n_ctx is None else min(n_batch, n_ctx * streams)


def _checkpoints(options: Mapping[str, Any]) -> int:
    said = {_count(options, name, 32) for name in CHECKPOINTS if options.get(name) is not None}
    if len(said) > 1:
        raise LawDoesNotCover(f"{' and '.join(CHECKPOINTS)} are one option and say {sorted(said)}; keep one")
    return said.pop() if said else 32


def _count(options: Mapping[str, Any], key: str, default: int) -> int:
    """A whole number, 0 or more."""
    value = options.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise LawDoesNotCover(f"{key} = {value!r}: a whole number, 0 or more, is needed")
    return value


def _refuse(made: ServerOptions, options: Mapping[str, Any]) -> None:
    """LawDoesNotCover for combinations nobody has stated a rule for."""
    if made.shared and made.n_ctx_slot is None:
        raise LawDoesNotCover("llama.cpp: slots that share cells purge one another; n_ctx or n_ctx_slot is needed")
    if made.n_cache_reuse and made.window is not None and made.window_cells == made.n_ctx_slot:
        raise LawDoesNotCover(
            "llama.cpp: no law for chunks moved in window layers; raise n_ctx above the window's cells, "
            f"{made.window_cells}, or set swa_full = true or n_cache_reuse = 0"
        )


def _ram_cache(made: ServerOptions, options: Mapping[str, Any]) -> RamCache | None:
    mib = options.get("cache_ram_mib", 0)
    if not isinstance(mib, int) or isinstance(mib, bool) or mib < -1:
        raise LawDoesNotCover(f"cache_ram_mib = {mib!r}: a whole number is needed; -1: no limit, 0: off")
    if mib == 0:
        return None
    if mib == -1:
        if made.n_ctx_slot is None:
            raise LawDoesNotCover("llama.cpp: the context bounds cache_ram_mib = -1; n_ctx or n_ctx_slot is needed")
        cells = made.n_ctx_slot * (1 if made.kv_unified else made.n_parallel)
        return RamCache(None, cells, StateBytes(per_token=0))
    return RamCache(mib * MIB, None, _sizes(made, options))


def _sizes(made: ServerOptions, options: Mapping[str, Any]) -> StateBytes:
    """Sizes as the options name them, or bounds where one that counts is missing."""
    window = any(group.kind is Kind.SWA for group in made.groups)
    needed = (True, window and not made.swa_full, made.recurrent)
    said = [_count(options, name, 0) if options.get(name) is not None else None for name in SIZES]
    if any(need and value is None for need, value in zip(needed, said, strict=True)):
        return StateBytes(
            per_token=MOST_BYTES_PER_TOKEN,
            per_window_cell=MOST_BYTES_PER_TOKEN if window else 0,
            recurrent=MOST_BYTES_PER_STATE if made.recurrent else 0,
            bound=True,
        )
    per_token, per_window_cell, recurrent = (value or 0 for value in said)
    return StateBytes(per_token=per_token, per_window_cell=per_window_cell, recurrent=recurrent)


ENTRIES = (_server(), _in_process())
