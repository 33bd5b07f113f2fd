"""One request's block table in one layer group: what it takes, publishes, retires and gives back.

Source: vLLM 0.23.0 to 0.33.0, v1/core/single_type_kv_cache_manager.py. The order of every step is the engine's own,
because it decides which blocks are handed out, and so what is evicted, in a bounded pool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reference_engine.laws.memory import Moves, Slots
from reference_engine.laws.parts.keyed_blocks import NONE, KeyedBlocks, Mask
from reference_engine.laws.vllm.plan import GroupPlan, Plan
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import Kind


class Publishing(NamedTuple):
    """What a step may publish."""

    tokens: int
    """Finished tokens of this group that may get a key."""
    keys: Slots
    """Keys of the request's units so far."""
    prompt_len: int
    junction: int
    """Boundary another request was seen to need; 0: none."""


class Copies:
    """Blocks copied in a step (a hit inside a block is continued on a copy); held until the step is planned."""

    def __init__(self, moves: Moves) -> None:
        self.ends: list[int] = []
        self._moves = moves

    def add(self, member: int, source: int, copy: int, block: int, *, state: bool) -> None:
        """A block of one group is copied before the next call reads or writes it."""
        self.ends += [source, copy]
        places = np.arange(1 if state else block)
        self._moves.add(member, source * len(places) + places, copy * len(places) + places)

    def release(self, blocks: KeyedBlocks) -> None:
        """Give both ends of every copy back."""
        if self.ends:
            blocks.give_back(np.asarray(self.ends))
            self.ends = []


class GroupTable:
    """Full attention, and what the kinds share."""

    gaps = False
    """Whether there may be places that hold none."""

    def __init__(self, plan: Plan, kind: GroupPlan, member: int, blocks: KeyedBlocks, copies: Copies) -> None:
        self.plan, self.kind, self.member, self.blocks, self.copies = plan, kind, member, blocks, copies
        self.block = kind.block
        self.table = NONE
        """The blocks in order; retired and skipped ones are 0."""
        self.published = 0
        """Leading blocks that are not published again."""
        self.attached = False
        self.partial: tuple[int, int] | None = None
        """Place and block of a shared tail that the next step copies."""

    @property
    def size(self) -> int:
        """Blocks in the table."""
        return len(self.table)

    # -- look-up -------------------------------------------------------------------------------------------------

    def skipped(self, computed: int) -> int:
        """Leading tokens this group no longer reads once `computed` tokens are there."""
        return 0

    def backs(self, found: Slots, hit: int) -> int:
        """Tokens of a hit that these blocks really hold."""
        return min(hit, len(found) * self.block)

    def attach(self, found: Slots, hit: int) -> None:
        """Start on the blocks of a hit."""
        skip = max(0, self.skipped(hit) // self.block)
        rest = found[skip:]
        self.blocks.share(self._held(rest))
        self.table = np.concatenate([np.zeros(skip, np.int64), rest]) if skip else rest
        self.attached, self.published = True, self.size
        if len(rest) and hit % self.block:
            self.partial = (hit // self.block, int(rest[-1]))
            self.published = hit // self.block

    # -- a step --------------------------------------------------------------------------------------------------

    def wanted(self, slots: int, found: Slots, computed: int, hit: int, target: int, *, admission: bool) -> int:
        """Free blocks the engine counts before it plans a step (`slots` tokens with the drafter's, `target` without).

        `found` and `hit`: blocks and length of a hit not attached yet.
        """
        required = -(-slots // self.block)
        if admission and (most := self._most_held()) is not None:
            required = min(required, most)
        if self.attached:
            return max(required - self.size, 0) + (self.partial is not None)
        skip = max(0, self.skipped(computed) // self.block)
        new = max(required - max(skip, len(found) + self.size), 0)
        count = new + self.blocks.unreferenced(found[max(0, skip - self.size) :])
        return count + (1 if len(found) and hit % self.block else 0)

    def retire(self, computed: int) -> None:
        """Give back blocks that lie wholly in front of what is still read."""
        stop = min(self.skipped(computed) // self.block, self.size)
        if stop > 0:
            gaps = np.flatnonzero(self.table[:stop] == 0)
            self._drop(int(gaps.max(initial=0)), stop)

    def allocate(self, slots: int, target: int) -> None:
        """Take the blocks of a step."""
        if self.partial is not None:
            place, source = self.partial
            self.partial = None
            copy = int(self.blocks.take(1)[0])
            self._copy(place, source, copy)
        self._extend(self.blocks.take(-(-slots // self.block) - self.size))

    def publish(self, what: Publishing) -> None:
        """Give finished blocks their keys."""
        self._publish_full(what)
        if self.block != self.plan.unit and self.plan.switches.fine_grained:
            self._publish_tail(what)

    def release(self) -> None:
        """The request is over."""
        sort = self.plan.switches.sorts_freed or self.kind.kind is Kind.SWA
        blank = self.size - self.published if self.plan.plain else None
        self.blocks.give_back(self._held(self.table)[::-1].copy(), sort=sort, blank=blank)
        self.table, self.partial = NONE, None

    # -- what the kinds change -------------------------------------------------------------------------------------

    def _most_held(self) -> int | None:
        return None

    def _mask(self, start: int, stop: int, what: Publishing) -> Mask | None:
        """Which of the blocks `start .. stop-1` are kept; None: all."""
        return None

    # -- parts -----------------------------------------------------------------------------------------------------

    def _publish_full(self, what: Publishing) -> None:
        per = self.block // self.plan.unit
        stop = min(what.tokens // self.block, len(what.keys) // per)
        start = self.published
        if start >= stop:
            return
        self.published = stop
        blocks, keys = self.table[start:stop], what.keys[(start + 1) * per - 1 : stop * per : per]
        if self.plan.plain:
            self.blocks.publish(self.member, keys, blocks, None)
            return
        tokens = np.arange((start + 1) * self.block, (stop + 1) * self.block, self.block)
        mask = self._mask(start, stop, what)
        if self.gaps:
            keep = blocks != 0 if mask is None else mask & (blocks != 0)
            blocks, keys, tokens = blocks[keep], keys[keep], tokens[keep]
        if len(blocks):
            self.blocks.publish(self.member, keys, blocks, tokens)

    def _publish_tail(self, what: Publishing) -> None:
        """The prompt's last whole unit, where it ends inside a block."""
        unit, switches = self.plan.unit, self.plan.switches
        limit = what.prompt_len - (switches.tail_below_last_token and not self.kind.eagle)
        end = min(limit // unit, len(what.keys)) * unit
        if 0 < end <= what.tokens and end % self.block and end // self.block < self.size:
            block = int(self.table[end // self.block])
            if block:
                self.blocks.publish_also(self.member, int(what.keys[end // unit - 1]), block, end)

    def _copy(self, place: int, source: int, copy: int) -> None:
        """Continue on a copy of a shared block."""
        self.table[place] = copy
        self.copies.add(self.member, source, copy, self.block, state=self.kind.kind is Kind.GDN)
        self.blocks.share(np.asarray([copy]))

    def _extend(self, blocks: Slots) -> None:
        if len(blocks):
            self.table = np.concatenate([self.table, blocks])

    def _kept(self, what: Publishing) -> list[int]:
        """Boundaries that a later request can resume at, which retention must not thin out."""
        switches = self.plan.switches
        if switches.replay_below_drop and self.plan.drop:
            block = self.plan.scheduler_block
            kept = [max(length // block * block - block, 0) for length in (what.prompt_len - 1, what.prompt_len)]
        else:
            kept = [what.prompt_len - 1]
        if what.junction:
            kept.append(what.junction)
            if switches.keeps_below_junction and self.kind.eagle:
                kept.append(what.junction - self.block)
        return kept

    def _held(self, blocks: Slots) -> Slots:
        """Without the places that hold none."""
        return blocks[blocks != 0] if self.gaps else blocks

    def _drop(self, start: int, stop: int, *, sort: bool = True) -> None:
        self.blocks.give_back(self._held(self.table[start:stop])[::-1].copy(), sort=sort)
        self.table[start:stop] = 0


class WindowTable(GroupTable):
    """Sliding-window attention."""

    gaps = True

    def skipped(self, computed: int) -> int:
        """Everything in front of the window of the next token."""
        return max(0, computed - self.kind.window + 1)

    def backs(self, found: Slots, hit: int) -> int:
        """All of it, or nothing where a block of the window is missing."""
        stop = -(-hit // self.block)
        window = found[max(0, hit - self.kind.window + 1) // self.block : stop]
        return hit if len(found) >= stop and window.all() else 0

    def _most_held(self) -> int | None:
        plan = self.plan
        tokens = self.kind.window - 1 + plan.budget
        return -(-(tokens if plan.context is None else min(tokens, plan.context)) // self.block) + 1

    def publish(self, what: Publishing) -> None:
        """Give finished blocks their keys."""
        self._publish_full(what)

    def _mask(self, start: int, stop: int, what: Publishing) -> Mask | None:
        plan, eagle = self.plan, self.kind.eagle
        align = plan.alignment if plan.switches.mask_at_hit_alignment else plan.scheduler_block
        if align % self.block:
            return None
        need, shift = self.kind.need + eagle, int(eagle)
        places = np.arange(start, stop)
        mask = np.zeros(stop - start, np.bool_)
        segment = align if plan.retention is None else plan.retention
        if segment:
            per = segment // self.block
            if need >= per:
                return None
            mask |= (places >= shift) & ((places - shift) % per >= per - need)
        if plan.retention is not None:
            for boundary in self._kept(what):
                end = boundary // align * align // self.block + shift
                mask |= (places >= end - need) & (places < end)
        return mask


class StateTable(GroupTable):
    """Recurrent states (`mamba_cache_mode` align): one block per boundary, the running one last."""

    gaps = True

    def __init__(self, plan: Plan, kind: GroupPlan, member: int, blocks: KeyedBlocks, copies: Copies) -> None:
        super().__init__(plan, kind, member, blocks, copies)
        self.allocated = False
        self._last_state: int | None = None
        self._retired = 0

    def skipped(self, computed: int) -> int:
        """All states but the newest."""
        return computed - 1

    def backs(self, found: Slots, hit: int) -> int:
        """All of it, or nothing where the state is missing."""
        last = -(-hit // self.block) - 1
        return hit if last < len(found) and found[last] else 0

    def wanted(self, slots: int, found: Slots, computed: int, hit: int, target: int, *, admission: bool) -> int:
        """As the engine counts: at most one new state, and the drafts' at first."""
        switches = self.plan.switches
        drafts = self.plan.state_drafts
        new = -(-target // self.block) + drafts - len(found) - self.size
        partial = bool(len(found) and hit % self.block) or self.partial is not None
        if partial:
            new = max(new, 0) + 1
        if new > 0:
            most = 1 + partial + (0 if self.allocated else drafts)
            new = min(new, most) if switches.caps_state_need else most
        new += self.blocks.unreferenced(found)
        if switches.counts_external and computed > len(found) * self.block and target > computed:
            new += 1
        return new

    def retire(self, computed: int) -> None:
        """Give back all states but the newest, and the copied-from state of two steps ago."""
        switches = self.plan.switches
        if switches.keeps_draft_states:
            computed -= self.plan.state_drafts
        if switches.retires_past_gaps:
            stop = min(self.skipped(computed) // self.block, self.size)
            if self._retired < stop:
                self._drop(self._retired, stop)
                self._retired = stop
        else:
            super().retire(computed)
        last = self._last_state
        if last is not None and last < -(-computed // self.block) - 1:
            self._drop(last, last + 1, sort=switches.sorts_freed)

    def allocate(self, slots: int, target: int) -> None:
        """Take a block for the running state; draft states move along."""
        drafts = self.plan.state_drafts
        required = -(-target // self.block) + drafts
        if required <= self.size and self.partial is None:
            self.allocated |= self.plan.switches.marks_allocated_early
            return
        before = self.size
        if self.allocated:
            self._last_state = before - 1 - drafts
        elif before:
            self._last_state = before - 1
        running = required - drafts - 1
        if before < running:
            self._extend(np.zeros(running - before, np.int64))
        if self.allocated:
            for place in range(before - drafts, min(before, running)):
                self._move_draft(place)
        new = max(required - self.size, 0)
        if self.partial is not None:
            taken = self.blocks.take(new + 1)
            self._continue_on_copy(*self.partial, int(taken[0]))
            taken = taken[1:]
            self.partial = None
        else:
            taken = self.blocks.take(new)
        self._extend(taken)
        self.allocated = True

    def publish(self, what: Publishing) -> None:
        """Give finished states their keys."""
        self._publish_full(what)
        if self.plan.switches.fine_grained:
            self._publish_checkpoint(what)

    def _move_draft(self, place: int) -> None:
        block = int(self.table[place])
        if self.plan.switches.marks_allocated_early and block and self.blocks.key_tokens(block) is not None:
            raise LawDoesNotCover(
                f"{self.plan.switches.law_id} stops here: a draft state of {self.kind.text} has a key"
            )
        self._extend(np.asarray([block]))
        self.table[place] = 0

    def _continue_on_copy(self, place: int, source: int, copy: int) -> None:
        if not self.allocated:
            self._copy(place, source, copy)
            return
        # A running request keeps writing into its block, so the cache moves to the copy.
        self.blocks.move_keys(source, copy)
        self.copies.add(self.member, source, copy, self.block, state=True)
        self.blocks.share(np.asarray([source]))

    def _mask(self, start: int, stop: int, what: Publishing) -> Mask | None:
        plan = self.plan
        if plan.retention is None or not plan.switches.retains_states:
            return None
        align = plan.alignment if plan.switches.mask_at_hit_alignment else plan.scheduler_block
        places = np.arange(start, stop)
        mask = np.zeros(stop - start, np.bool_)
        if plan.retention:
            per = plan.retention // self.block
            if per <= 1:
                return None
            mask |= (places + 1) % per == 0
        for boundary in self._kept(what):
            mask |= places == boundary // align * align // self.block - 1
        return mask

    def _publish_checkpoint(self, what: Publishing) -> None:
        """The state at the prompt's checkpoint, which may lie inside a block."""
        plan, unit, tokens = self.plan, self.plan.unit, what.tokens
        if plan.switches.tail_at_checkpoint:
            if tokens <= 0 or tokens % unit or tokens != checkpoint(plan, what.prompt_len, unit):
                return
        else:
            end = what.prompt_len // unit * unit
            if plan.switches.replay_below_drop and self.kind.eagle:
                end = max(end - unit, 0)
            if self.block == unit or tokens % self.block == 0 or tokens % unit or tokens != end:
                return
        place = -(-tokens // self.block) - 1
        if place >= self.size or tokens // unit > len(what.keys):
            return
        block = int(self.table[place])
        if not block or (plan.switches.lookahead_keys and self.blocks.key_tokens(block) == tokens):
            return
        self.blocks.publish_also(self.member, int(what.keys[tokens // unit - 1]), block, tokens)
        if tokens % self.block:
            self.partial = (place, block)
            self.published = place


def checkpoint(plan: Plan, length: int, unit: int) -> int:
    """Where a repeat of `length` tokens can resume at best (0.32.0: get_mamba_prefill_checkpoint_position)."""
    if plan.drop:  # the drop leaves tokens to compute already
        return max(0, length // unit * unit - unit)
    return max(0, (length - max(1, plan.lookahead)) // unit * unit)


TABLES: dict[Kind, type[GroupTable]] = {Kind.FULL: GroupTable, Kind.SWA: WindowTable, Kind.GDN: StateTable}


def new_tables(plan: Plan, blocks: KeyedBlocks, copies: Copies) -> list[GroupTable]:
    """Empty tables of a request, in the order of the groups."""
    return [TABLES[kind.kind](plan, kind, member, blocks, copies) for member, kind in enumerate(plan.kind_of)]
