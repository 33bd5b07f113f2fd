"""How far one kind of layer group reaches into a prompt, and the hit that all groups agree on.

Source: vLLM 0.23.0 to 0.33.0, v1/core/single_type_kv_cache_manager.py (find_longest_cache_hit of the full-attention,
sliding-window and Mamba managers) and v1/core/kv_cache_coordinator.py (the fixed point over groups); vLLM-Ascend
0.23.0 and 0.26.0rc1, patch/platform/patch_kv_cache_coordinator.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reference_engine.laws.base import Slots
from reference_engine.laws.parts.keyed_blocks import NONE, KeyedBlocks, Mask
from reference_engine.laws.vllm.plan import GroupPlan, Plan
from vocabulary.groups import Kind


class Reach(NamedTuple):
    """What one kind of group offers."""

    length: int
    """Tokens."""
    start: int
    stop: int
    """The hit stands on the group's blocks `start .. stop-1` of the prompt; those in front are not held."""
    tail_key: int | None = None
    """Place of the key (in units) under which the last block is found, where the hit ends inside it."""


class Cut(NamedTuple):
    """One kind of group shortened the candidate."""

    kind: GroupPlan
    length: int


class Found(NamedTuple):
    """The outcome of a look-up."""

    hit: int
    cuts: tuple[Cut, ...]
    """In the order in which they shortened the candidate."""
    longest: int
    """Deepest single result; beyond the hit it marks the junction."""
    blocks: list[Slots]
    """What the hit stands on, by group; 0 where none is held."""


Agreed = tuple[int, dict[str, Reach], tuple[Cut, ...], int]
"""Hit, what each kind offers by its text, cuts in order, and the deepest single result."""


class Finder:
    """Look-ups over one pool."""

    def __init__(self, plan: Plan, blocks: KeyedBlocks) -> None:
        self.plan, self.blocks = plan, blocks

    def reach(self, kind: GroupPlan, keys: Slots, bound: int, *, drop: bool, ever: bool) -> Reach:
        """Longest reuse of at most `bound` tokens that this kind of group allows."""
        match kind.kind:
            case Kind.FULL:
                return self._full(kind, keys, bound, drop=drop, ever=ever)
            case Kind.SWA:
                return self._window(kind, keys, bound, drop=drop, ever=ever)
            case Kind.GDN:
                return self._state(kind, keys, bound, ever=ever)

    def find(self, keys: Slots, prompt_len: int) -> Found:
        """The hit all groups agree on."""
        plan, cap = self.plan, prompt_len - 1
        if plan.plain:
            kind, held = plan.kinds[0], self.blocks.holders(0, keys[: cap // plan.unit])
            run = _leading(held != 0)
            if run and kind.eagle:
                run -= 1
            hit = run * plan.unit
            return Found(hit, (Cut(kind, hit),), hit, [held[:run]])
        hit, reaches, cuts, longest = self._look(keys, cap, ever=False)
        blocks = [self._held(at, kind, reaches.get(kind.text), hit, keys) for at, kind in enumerate(plan.kind_of)]
        return Found(hit, cuts, longest, blocks)

    def unevicted(self, keys: Slots, prompt_len: int) -> tuple[Cut, ...]:
        """What would shorten the candidate if nothing had been evicted."""
        return self._look(keys, prompt_len - 1, ever=True)[2]

    def _held(self, member: int, kind: GroupPlan, reach: Reach | None, hit: int, keys: Slots) -> Slots:
        """The blocks of a hit in one group, 0 where none is held."""
        if reach is None:
            return NONE
        block, per, full = kind.block, kind.block // self.plan.unit, kind.kind is Kind.FULL
        start, stop = reach.start, min(reach.stop, -(-hit // block)) if full else reach.stop
        if stop <= start:
            return np.zeros(0 if full else reach.length // block, np.int64)
        tail = reach.tail_key if stop == reach.stop else None
        whole = stop if tail is None else stop - 1
        blocks = self.blocks.holders(member, keys[(start + 1) * per - 1 : whole * per : per])
        if tail is not None:
            blocks = np.concatenate([blocks, self.blocks.holders(member, keys[tail : tail + 1])])
        return np.concatenate([np.zeros(start, np.int64), blocks]) if start else blocks

    def alone(self, kind: GroupPlan, keys: Slots, prompt_len: int) -> int:
        """Tokens that one kind of group would allow by itself."""
        plan, bound = self.plan, prompt_len - 1
        if kind.eagle and plan.hybrid and kind.kind is not Kind.GDN and plan.switches.bound_by_hashed:
            bound = min(bound + plan.margin(kind), len(keys) * plan.unit)
        return self.reach(kind, keys, bound, drop=kind.eagle, ever=False).length

    def _look(self, keys: Slots, cap: int, *, ever: bool) -> Agreed:
        if self.plan.hybrid:
            return self._agree(keys, cap, ever=ever)
        kind = self.plan.kinds[0]
        reach = self.reach(kind, keys, cap, drop=kind.eagle, ever=ever)
        return reach.length, {kind.text: reach}, (Cut(kind, reach.length),), reach.length

    def _agree(self, keys: Slots, cap: int, *, ever: bool) -> Agreed:
        plan, switches = self.plan, self.plan.switches
        simple = len(plan.kinds) == 2 and plan.kinds[0].kind is Kind.FULL
        looked_past = len(keys) * plan.unit if switches.bound_by_hashed else cap
        reaches: dict[str, Reach] = {}
        cuts: list[Cut] = []
        verified: set[str] = set()
        hit, longest = cap, 0
        while True:
            candidate = hit
            for kind in plan.kinds:
                before = candidate
                if kind.kind is Kind.FULL and kind.text in reaches:
                    if switches.full_keeps_first:
                        candidate = min(candidate, reaches[kind.text].length)
                    else:
                        candidate = candidate // kind.block * kind.block
                    if candidate < before:
                        cuts.append(Cut(kind, candidate))
                    continue
                drop = kind.eagle and kind.text not in verified
                bound = candidate
                if drop and (kind.kind is not Kind.GDN or switches.mamba_margin):
                    bound = min(candidate + plan.margin(kind), looked_past)
                reach = self.reach(kind, keys, bound, drop=drop, ever=ever)
                if drop:
                    verified.add(kind.text)
                elif reach.length < candidate:
                    verified.clear()
                reaches[kind.text], candidate = reach, reach.length
                if candidate < before:
                    cuts.append(Cut(kind, candidate))
                longest = max(longest, candidate)
            if candidate >= hit:
                break
            hit = candidate
            if simple:
                break
        return hit, reaches, tuple(cuts), longest

    def _present(self, kind: GroupPlan, keys: Slots, bound: int, *, ever: bool) -> Mask:
        """Which of the whole blocks within `bound` are held by all groups of the kind."""
        per = kind.block // self.plan.unit
        count = min(bound // kind.block, len(keys) // per)
        return self.blocks.found(kind.members, keys[per - 1 : count * per : per], ever=ever)

    def _full(self, kind: GroupPlan, keys: Slots, bound: int, *, drop: bool, ever: bool) -> Reach:
        align, block = self.plan.alignment, kind.block
        run = _leading(self._present(kind, keys, bound, ever=ever))
        length, tail = run * block, None
        if align < block and block % align == 0:
            first = run * (block // align)
            last = min(first + block // align - 1, bound // align, len(keys))
            inside = np.flatnonzero(self.blocks.found(kind.members, keys[first:last], ever=ever))
            if len(inside):
                tail = first + int(inside[-1])
                length = (tail + 1) * align
        if drop and length:
            length -= min(align, block)
        length -= length % align
        stop = -(-length // block)
        return Reach(length, 0, stop, tail if stop > run else None)

    def _window(self, kind: GroupPlan, keys: Slots, bound: int, *, drop: bool, ever: bool) -> Reach:
        align, block = self.plan.alignment, kind.block
        present = self._present(kind, keys, bound, ever=ever)
        index = np.arange(len(present))
        run = index - np.maximum.accumulate(np.where(present, -1, index)) if len(present) else index
        ends = present & ((index + (not drop)) * block % align == 0)
        need = max(1, kind.need + drop)
        enough = np.flatnonzero(ends & (run >= need))
        if len(enough):
            stop = int(enough[-1]) + 1
            start = stop - need
        else:
            leading = np.flatnonzero(ends[: _leading(present)])
            start, stop = 0, int(leading[-1]) + 1 if len(leading) else 0
            stop = stop * block // align * align // block
        if drop and stop:
            stop = (stop - 1) * block // align * align // block
        return Reach(stop * block, min(start, stop), stop)

    def _state(self, kind: GroupPlan, keys: Slots, bound: int, *, ever: bool) -> Reach:
        align, block = self.plan.alignment, kind.block
        if align < block and block % align == 0:
            units = min(bound // align, len(keys))
            held = np.flatnonzero(self.blocks.found(kind.members, keys[:units], ever=ever))
            if not len(held):
                return Reach(0, 0, 0)
            unit = int(held[-1])
            place = unit * align // block
            return Reach((unit + 1) * align, place, place + 1, unit)
        present = self._present(kind, keys, bound, ever=ever)
        held = np.flatnonzero(present & ((np.arange(len(present)) + 1) * block % align == 0))
        if not len(held):
            return Reach(0, 0, 0)
        stop = int(held[-1]) + 1
        return Reach(stop * block, stop - 1, stop)


def _leading(present: Mask) -> int:
    """Length of the leading run of True."""
    at = int(present.argmin()) if len(present) else 0
    return at if at or not len(present) or not present[0] else len(present)
