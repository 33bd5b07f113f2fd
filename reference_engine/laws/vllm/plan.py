"""A configuration of vLLM resolved to the numbers its rule works with, or refused.

Source: vLLM 0.23.0 to 0.33.0, v1/core/kv_cache_utils.py (resolve_kv_cache_block_sizes, draft groups),
v1/core/kv_cache_coordinator.py (fine-grained hits, retention), config/speculative.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reference_engine.laws.base import PoolExhausted
from reference_engine.laws.entry import flag, given, layer_groups, pages, positive
from reference_engine.laws.vllm.switches import EagleGroups, Switches
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import Kind, LayerGroup

EAGLE_METHODS = ("eagle", "eagle3", "mtp")
DEFAULT_BUDGET = 8192
"""`max_num_batched_tokens` where none is given: what the lookup worker asks vLLM for."""
PLAIN_METHODS = ("ngram",)
"""Drafters without layers of their own: nothing is dropped and no block is reserved."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Layer groups of one kind, block and window: looked up together."""

    kind: Kind
    block: int
    window: int
    """0 where the kind has none."""
    members: tuple[int, ...]
    """Their places in the list of groups."""
    eagle: bool
    """Whether a look-up gives back a unit here."""
    ahead: bool
    """Whether one block past the common multiple is published, for look-ups that give a unit back."""
    text: str

    @property
    def need(self) -> int:
        """Blocks in front of a boundary that a window needs."""
        return -(-(self.window - 1) // self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All numbers of one configuration."""

    switches: Switches
    groups: tuple[LayerGroup, ...]
    kinds: tuple[GroupPlan, ...]
    """Full attention first, as the look-up visits them."""
    kind_of: tuple[GroupPlan, ...]
    """Of each group."""
    unit: int
    """Tokens per key (vLLM: hash block size)."""
    scheduler_block: int
    """Least common multiple of the blocks."""
    split_block: int
    """Smallest block: what chunks are aligned to (vLLM: cache_config.block_size)."""
    fine: bool
    """Hits at `unit` inside a block."""
    caching: bool
    drop: bool
    """Whether EAGLE groups give a unit back."""
    lookahead: int
    """Tokens behind a block that its key covers."""
    drafts: int
    """Tokens proposed per step."""
    draft_slots: int
    """Slots reserved for the drafter's own KV per step."""
    state_drafts: int
    """State blocks per recurrent group beside the running one."""
    retention: int | None
    budget: int
    """Most tokens per step."""
    context: int | None
    """`max_model_len`; None: no limit."""
    num_blocks: int | None
    """Blocks of the pool, block 0 included; None: unbounded."""
    alignment: int
    """Every hit is a multiple of this."""
    hybrid: bool
    """More than one group: hits and publication are aligned to the common multiple."""
    plain: bool
    """Full attention alone: every whole block that was computed is kept until it is evicted."""
    recurrent: bool
    """Whether chunks are clipped for recurrent states."""

    def margin(self, kind: GroupPlan) -> int:
        """What an EAGLE group matches past the candidate before it gives it back."""
        inside = self.fine and kind.kind is not Kind.SWA and kind.block > self.unit
        return self.unit if inside else kind.block

    def check(self, prompt_len: int, max_tokens: int) -> None:
        """LawDoesNotCover for a prompt that no pool could serve."""
        law = self.switches.law_id
        if not prompt_len:
            raise LawDoesNotCover(f"{law}: the prompt is empty")
        if self.context is not None and prompt_len + max_tokens > self.context:
            raise LawDoesNotCover(f"{law} refuses {prompt_len} + {max_tokens} tokens: max_model_len = {self.context}")

    def no_room(self, wanted: int, free: int) -> PoolExhausted:
        """The engine would not admit the prompt."""
        return PoolExhausted(f"{self.switches.law_id}: {wanted} blocks wanted for the prompt, {free} free")

    def would_preempt(self, wanted: int, position: int, free: int) -> PoolExhausted:
        """There is no room for a step."""
        return PoolExhausted(
            f"{self.switches.law_id}: {wanted} blocks wanted at position {position}, {free} free; "
            "the engine would preempt the request, which this law does not follow"
        )

    def space(self, request: TokenRequest) -> tuple[str | None, str | None]:
        """What separates equal prompts: cache salt and adapter."""
        lora = request.lora
        if lora is not None and not self.switches.lora_path:
            lora = lora.partition("@")[0]
        return request.namespace, lora


def resolve(switches: Switches, options: Mapping[str, Any], pool_tokens: int | None) -> Plan:
    """Read the options of one release; LawDoesNotCover where the engine or the law refuses them."""
    law = switches.law_id
    default = positive(options, "block_size", 16)
    groups = tuple(LayerGroup(g.kind, g.block or default, g.window) for g in layer_groups(options))
    blocks = [_block(g) for g in groups]
    caching = flag(options, "enable_prefix_caching", default=True)
    _only(law, options, "mamba_cache_mode", ("align",))
    drafts = options.get("num_speculative_tokens", 0)
    if not isinstance(drafts, int) or isinstance(drafts, bool) or drafts < 0:
        raise LawDoesNotCover(f"{law}: num_speculative_tokens = {drafts!r}: a whole number is needed")
    method = options.get("method", "mtp")
    if drafts and method not in (*EAGLE_METHODS, *PLAIN_METHODS):
        raise LawDoesNotCover(
            f"{law}: no law for speculative method {method!r}, only {', '.join((*EAGLE_METHODS, *PLAIN_METHODS))}"
        )
    if drafts and method in PLAIN_METHODS and any(g.kind is not Kind.FULL for g in groups):
        raise LawDoesNotCover(f"{law}: method {method!r} is covered for full attention only")
    eagle = bool(drafts) and method in EAGLE_METHODS
    drop = eagle and not (switches.drop_can_be_disabled and flag(options, "disable_eagle_block_drop", default=False))
    kept = drop and switches.standalone_keeps and len(groups) > 1
    drop = drop and not kept
    lookahead = int(
        switches.lookahead_keys
        and drop
        and caching
        and not flag(options, "disable_lookahead_block_hashes", default=False)
    )
    drop = drop and not lookahead
    unit, fine = _units(switches, options, groups, blocks, caching=caching)
    num_blocks = _num_blocks(options, blocks, pool_tokens)
    kinds = _kinds(groups, _eagle_members(switches, groups, method) if drop else frozenset(), kept=kept)
    return Plan(
        switches=switches,
        groups=groups,
        kinds=kinds,
        kind_of=tuple(next(kind for kind in kinds if i in kind.members) for i in range(len(groups))),
        unit=unit,
        scheduler_block=math.lcm(*blocks),
        split_block=min(blocks),
        fine=fine,
        caching=caching,
        drop=drop,
        lookahead=lookahead,
        drafts=drafts,
        draft_slots=drafts if eagle else 0,
        state_drafts=drafts,
        retention=_retention(switches, options, groups, math.lcm(*blocks)),
        budget=positive(options, "max_num_batched_tokens", DEFAULT_BUDGET),
        context=given(options, "max_model_len"),
        num_blocks=num_blocks,
        alignment=unit if fine else math.lcm(*blocks),
        hybrid=len(groups) > 1,
        plain=len(groups) == 1 and groups[0].kind is Kind.FULL,
        recurrent=caching and any(group.kind is Kind.GDN for group in groups),
    )


def _block(group: LayerGroup) -> int:
    assert group.block is not None
    return group.block


def _only(law: str, options: Mapping[str, Any], key: str, values: tuple[str, ...]) -> None:
    value = options.get(key)
    if value is not None and value not in values:
        raise LawDoesNotCover(f"{law}: no law for {key} = {value!r}, only {', '.join(values)}")


def _units(
    switches: Switches, options: Mapping[str, Any], groups: tuple[LayerGroup, ...], blocks: list[int], *, caching: bool
) -> tuple[int, bool]:
    """Tokens per key, and whether hits land on them inside a block."""
    law, common = switches.law_id, math.lcm(*blocks)
    asked = given(options, "prefix_match_unit")
    if len(groups) == 1:
        if asked not in (None, *blocks) and caching and switches.bound_by_hashed:
            raise LawDoesNotCover(f"{law} refuses prefix_match_unit = {asked} with one layer group of {common} tokens")
        return common, False
    if len({str(g) for g in groups}) == 1 and caching and not switches.mask_at_hit_alignment:
        raise LawDoesNotCover(f"{law} refuses several layer groups that are all {groups[0]}")
    if (
        len({b for g, b in zip(groups, blocks, strict=True) if g.kind is Kind.FULL}) > 1
        and not switches.full_keeps_first
    ):
        raise LawDoesNotCover(f"{law}: no law for full attention in blocks of different sizes in this release")
    states = [block for group, block in zip(groups, blocks, strict=True) if group.kind is Kind.GDN]
    if not caching:
        return common, False
    if not switches.mask_at_hit_alignment and any(block != min(blocks) for block in states):
        unit = common
    else:
        unit = asked if asked is not None else math.gcd(*blocks)
    if any(block % unit for block in blocks):
        raise LawDoesNotCover(f"{law} refuses layer groups {', '.join(map(str, groups))} with keys of {unit} tokens")
    fine = switches.fine_grained and any(block > unit for block in states)
    coarse = any(group.kind is Kind.SWA and block != unit for group, block in zip(groups, blocks, strict=True))
    if fine and coarse and not switches.fine_beside_windows:
        if not switches.mask_at_hit_alignment:
            raise LawDoesNotCover(f"{law} fails on sliding windows with hits of {unit} tokens inside their blocks")
        fine = False
    return unit, fine


def _eagle_members(switches: Switches, groups: tuple[LayerGroup, ...], method: str) -> frozenset[int]:
    """Places of the groups that give a unit back. The draft layers belong to the first full-attention group."""
    everyone = frozenset(range(len(groups)))
    if switches.eagle_groups is EagleGroups.ALL:
        return everyone
    if switches.eagle_groups is EagleGroups.TRAILING_MTP and method != "mtp":
        return everyone
    full = [i for i, group in enumerate(groups) if group.kind is Kind.FULL]
    return frozenset(full[:1]) or everyone


def _kinds(groups: tuple[LayerGroup, ...], eagle: frozenset[int], *, kept: bool) -> tuple[GroupPlan, ...]:
    """`kept`: there is a drafter, and nothing is given back for it."""
    members: dict[LayerGroup, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    kinds = []
    for group, at in members.items():
        drops = bool(eagle.intersection(at))
        ahead = drops or (kept and group.kind is Kind.FULL)
        kinds.append(GroupPlan(group.kind, _block(group), group.window or 0, tuple(at), drops, ahead, str(group)))
    return tuple(sorted(kinds, key=lambda kind: kind.kind is not Kind.FULL))


def _retention(
    switches: Switches, options: Mapping[str, Any], groups: tuple[LayerGroup, ...], common: int
) -> int | None:
    key = "prefix_cache_retention_interval"
    value = options.get(key, switches.retention_default)
    if value is None or (switches.hybrids_ignore_retention and len(groups) > 1):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value % common:
        raise LawDoesNotCover(f"{switches.law_id}: {key} = {value!r}: null, 0 or a multiple of {common} is needed")
    kinds = {group.kind for group in groups}
    if Kind.SWA in kinds or (switches.retains_states and Kind.GDN in kinds):
        return value
    if value == 0 and switches.retention_default == 0:
        return None
    raise LawDoesNotCover(f"{switches.law_id} refuses {key} = {value} for layer groups {', '.join(map(str, groups))}")


def _num_blocks(options: Mapping[str, Any], blocks: list[int], pool_tokens: int | None) -> int | None:
    """Blocks of the pool with block 0: `num_blocks` and the reference engine's pool do not count it."""
    usable = pages(pool_tokens, max(blocks), options, "num_blocks")
    return given(options, "num_gpu_blocks_override") if usable is None else usable + 1
