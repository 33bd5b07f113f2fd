"""vLLM's law: block tables of several layer groups over one pool, and the hit they agree on.

    full attention      leading run of cached blocks that ends at or below L-1
    sliding window      the blocks of the W-1 tokens in front of a boundary
    recurrent state     one state at a boundary, kept only where a chunk ended
    hybrid              the longest boundary all groups accept (`find`), multiples of the blocks' common multiple

Versions differ in what `switches` lists. Keys cover the whole prefix, the cache salt, the LoRA adapter and items like
images: identifier and place go into the keys of the blocks that an item touches, beside the IDs at its positions. A
request for prompt log-probabilities skips the look-up and still publishes.

Memory, of prompts by the blocks of a trace: some 70 bytes per block of the pool, and 12 bytes per distinct block of the
trace and namespace, since whether a token is novel or was evicted needs the memory of all there was. Full attention
alone in a bounded pool needs no more: keys that no block has any longer are forgotten (`_forget_keys`). Otherwise all
keys stay: 10 bytes per unit and layer group, because what windows and states once had follows from nothing else.
Prompts by tokens take 8 bytes per distinct token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reference_engine.laws.base import Law, Lease, Serve, Slots
from reference_engine.laws.memory import Room
from reference_engine.laws.parts.chained import Chained, Tokens, sequence
from reference_engine.laws.parts.history import History
from reference_engine.laws.parts.key_radix import KeyRadix
from reference_engine.laws.parts.keyed_blocks import NONE, KeyedBlocks
from reference_engine.laws.vllm.explain import Looked, explain
from reference_engine.laws.vllm.find import Finder, Found
from reference_engine.laws.vllm.plan import Plan
from reference_engine.laws.vllm.serial import Serial
from reference_engine.laws.vllm.steps import Step, decode_step, prefill_step
from reference_engine.laws.vllm.tables import Copies, GroupTable, Publishing, new_tables
from vocabulary.engine import Feature, TokenRequest
from vocabulary.groups import Kind, LayerGroup

KEYS = 1 << 17
"""Keys that may wait before those without a block are forgotten."""
SKIPS = frozenset({Feature.PROMPT_LOGPROBS, Feature.SKIP_LOOKUP})


@dataclass(slots=True)
class Held:
    """What a lease holds."""

    tables: list[GroupTable]
    """Block tables in the order of the groups."""
    space: str
    """What separates equal prompts: cache salt and adapter."""
    keys: Slots
    copies: Copies
    junction: int
    """Boundary at which a chunk ends and a state is kept for the next sibling; 0: none."""
    planned: Step | None = None
    first: bool = True


class VllmLaw(Law):
    """One release and configuration."""

    reads_chains = True
    can_media = True

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, self.id, self.granule = plan, plan.switches.law_id, plan.alignment
        self.pool_tokens = None if plan.num_blocks is None else (plan.num_blocks - 1) * max(k.block for k in plan.kinds)
        self.rooms = tuple(Room(group, _room_slots(group, plan.num_blocks)) for group in plan.groups)
        self.drafts = plan.drafts
        self.radix = KeyRadix(plan.unit, plan.lookahead)
        self.blocks = KeyedBlocks(plan.num_blocks, len(plan.groups), remembers=not plan.plain)
        self.finder = Finder(plan, self.blocks)
        self.chunks_bind = not plan.plain
        self._admits_all = plan.plain and not plan.drafts
        """Whether the admission takes all blocks that prefill needs, however it is cut."""
        self.history = History()
        self._leases: set[Lease] = set()
        self._most_keys = KEYS if plan.plain and plan.num_blocks is not None else None

    # -- life cycle ------------------------------------------------------------------------------------------------

    def admit(self, request: TokenRequest) -> Lease:
        """Match and pin what is hit; full attention alone also takes the blocks of the whole prompt."""
        plan, length = self.plan, request.prompt_len
        plan.check(length, request.max_tokens)
        ids, space = sequence(request), self._space(request)
        keys = self._keys(ids, space)
        looked_up = plan.caching and not SKIPS.intersection(request.features)
        found = self.finder.find(keys, length) if looked_up else None
        copies = Copies(self.moves)
        held = Held(new_tables(plan, self.blocks, copies), space, keys, copies, self._junction(found))
        self._check_room(held, found, length)
        lease = Lease(request, explain(plan, self.history, self._looked(ids, held, found)), ids)
        lease.held = held
        if found is not None and any(map(len, found.blocks)):
            for table, blocks in zip(held.tables, found.blocks, strict=True):
                table.attach(blocks, found.hit)
        self._leases.add(lease)
        if plan.plain:
            held.tables[0].allocate(length, length)
        return lease

    def chunk_end(self, lease: Lease) -> int:
        """End of the scheduler's next prefill step; its blocks are taken."""
        held = _held(lease)
        length = lease.request.prompt_len
        if lease.computed_len >= length:
            return length
        if self._admits_all:
            return min(lease.computed_len + self.plan.budget, length)
        if held.planned is None or held.planned.start != lease.computed_len:
            step = prefill_step(self.plan, length, lease.computed_len, held.junction, first=held.first)
            self._take(held, step)
        assert held.planned is not None
        return held.planned.end

    def computed(self, lease: Lease, end: int) -> None:
        """Publish what is finished. Steps that the caller cut differently get their blocks here."""
        held = _held(lease)
        if end > lease.computed_len:
            planned = held.planned is not None and held.planned.end >= end
            if not planned and not (self._admits_all and end <= lease.request.prompt_len):
                self._take(held, Step(lease.computed_len, end, end))
            self._publish(lease, held, end)
            lease.computed_len, held.planned, held.first = end, None, False

    def append(self, lease: Lease, token_id: int) -> None:
        """A generated token joins; all but the last of `max_tokens` get a slot, in the step that computes them."""
        self._add(lease, token_id)
        if lease.length < lease.request.prompt_len + lease.request.max_tokens:
            self._schedule_decode(lease)

    def release(self, lease: Lease) -> None:
        """Give the blocks back, group by group, tail first."""
        held = _held(lease)
        self._leases.discard(lease)
        held.copies.release(self.blocks)
        self.history.add(lease.ids[: lease.computed_len], held.space)
        for table in held.tables:
            table.release()
        if self._most_keys is not None and self.radix.count > self._most_keys:
            self._most_keys = self._forget_keys()

    def finish(self, request: TokenRequest, output_ids: Sequence[int]) -> None:
        """One decode step per generated token but the last, which no engine computes."""
        lease = self._sent.pop(request.request_id)
        self._room_for(lease, len(output_ids))
        try:
            if self.plan.plain and not self.plan.lookahead and len(output_ids) > 1:
                self._decode_at_once(lease, output_ids)
                return
            for token_id in output_ids[:-1]:
                self._add(lease, token_id)
                self._schedule_decode(lease)
                self.computed(lease, lease.length)
            for token_id in output_ids[-1:]:
                self._add(lease, token_id)
        finally:
            self.release(lease)

    def replay(self) -> Serve:
        """As `Law.replay`; full attention alone costs a few stretches of a prompt, not its blocks."""
        return Serial(self.plan).serve if Serial.covered(self.plan) else super().replay()

    def _decode_at_once(self, lease: Lease, output_ids: Sequence[int]) -> None:
        """All decode steps in one: full attention alone only takes blocks and gives them keys, in one order."""
        for token_id in output_ids[:-1]:
            lease.push(token_id)
        self._schedule_decode(lease)
        self.computed(lease, lease.length)
        lease.push(output_ids[-1])

    def reset(self) -> None:
        """Forget everything."""
        assert not self._leases, "reset while requests hold blocks"
        self.radix.clear()
        self.blocks.clear()
        self.history.clear()

    def check_integrity(self) -> None:
        """The pool's books match the tables of all leases."""

        def referenced() -> Slots:
            parts = [table.table for lease in self._leases for table in _held(lease).tables]
            parts += [np.asarray(_held(lease).copies.ends, np.int64) for lease in self._leases]
            return np.concatenate(parts) if parts else np.empty(0, np.int64)

        self.blocks.check_integrity(referenced)

    # -- memory ----------------------------------------------------------------------------------------------------

    def slots(self, lease: Lease, group: int, start: int, end: int) -> Slots:
        """As `Law.slots`; block 0, which stands for "none held", has places too, as in vLLM."""
        table, position = _held(lease).tables[group], np.arange(start, end)
        places: Slots = table.table[position // table.block] * table.block + position % table.block
        return places

    def state(self, lease: Lease, group: int, position: int) -> int:
        """As `Law.state`: a block is a state."""
        table = _held(lease).tables[group]
        return int(table.table[(position - 1) // table.block])

    def stores(self, lease: Lease, group: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """As `Law.stores`: block boundaries that have a block, and the end."""
        table = _held(lease).tables[group]
        ends = range(-(-(start + 1) // table.block) * table.block, end, table.block)
        inner = [(at, self.state(lease, group, at)) for at in ends if table.table[at // table.block - 1]]
        return (*inner, (end, self.state(lease, group, end)))

    # -- parts -----------------------------------------------------------------------------------------------------

    def _space(self, request: TokenRequest) -> str:
        return repr(self.plan.space(request))

    def _looked(self, ids: Tokens, held: Held, found: Found | None) -> Looked:
        plan, length = self.plan, len(ids)
        if found is None:
            return Looked(ids, held.space, length, None, 0, (), False, {kind.text: 0 for kind in plan.kinds}, 0)
        hit, cuts, evicted = found.hit, found.cuts, self.blocks.evicted
        if plan.plain:
            # What is not there has been evicted, and how long it would have been follows from the history.
            alone = {plan.kinds[0].text: hit}
            return Looked(ids, held.space, length, hit, hit, () if evicted else cuts, evicted, alone, hit)
        alone = {kind.text: self.finder.alone(kind, held.keys, length) if plan.hybrid else hit for kind in plan.kinds}
        backed = hit
        if hit and plan.switches.mamba_margin:
            backed = min(table.backs(blocks, hit) for table, blocks in zip(held.tables, found.blocks, strict=True))
        if evicted:
            cuts = self.finder.unevicted(held.keys, length)
        longest = found.longest if plan.switches.junctions else hit
        return Looked(ids, held.space, length, hit, longest, cuts, evicted, alone, min(hit, backed))

    def _keys(self, ids: Tokens, space: str) -> Slots:
        keys = self.radix.keys(ids, space)
        self.blocks.grow_keys(self.radix.count)
        return keys

    def _junction(self, found: Found | None) -> int:
        """Where this request will leave a state or window for its next sibling."""
        if found is None or not self.plan.switches.junctions or not self.plan.hybrid:
            return 0
        return found.longest if found.longest > found.hit else 0

    def _forget_keys(self) -> int:
        """Forget keys that neither a block nor a lease has; gives how many there may be the next time."""
        leases = [_held(lease) for lease in self._leases]
        numbers = self.radix.keep(np.concatenate([self.blocks.keys(), *(held.keys for held in leases)]))
        if numbers is not None:
            self.blocks.renumber(numbers, numbers.count)
            for held in leases:
                held.keys = numbers(held.keys)
        return max(KEYS, 2 * self.radix.count)

    def _check_room(self, held: Held, found: Found | None, length: int) -> None:
        """PoolExhausted where the engine would not admit the request."""
        plan = self.plan
        if plan.num_blocks is None or (plan.plain and length <= self.blocks.queue.free * plan.unit):
            return  # the second: there is room even if all of it is new
        total = length if plan.context is None else min(length, plan.context)
        hit, lists = (found.hit, found.blocks) if found else (0, [NONE] * len(held.tables))
        wanted = sum(
            table.wanted(total, blocks, hit, hit, total, admission=True)
            for table, blocks in zip(held.tables, lists, strict=True)
        )
        if wanted > self.blocks.queue.free:
            raise plan.no_room(wanted, self.blocks.queue.free)

    def _take(self, held: Held, step: Step) -> None:
        """Plan a step: retire, check for room, take blocks."""
        plan = self.plan
        slots = step.target + plan.draft_slots
        if plan.context is not None:
            slots = min(slots, plan.context)
        if not held.first:
            for table in held.tables:
                table.retire(step.start)
        if plan.num_blocks is not None:
            wanted = sum(
                table.wanted(slots, NONE, step.start, step.start, step.target, admission=False) for table in held.tables
            )
            if wanted > self.blocks.queue.free:
                raise plan.would_preempt(wanted, step.start, self.blocks.queue.free)
        for table in held.tables:
            table.allocate(slots, step.target)
        held.planned = step

    def _publish(self, lease: Lease, held: Held, end: int) -> None:
        plan = self.plan
        if plan.caching:
            if self.radix.units(lease.length) > len(held.keys):  # generated tokens have filled units
                held.keys = self._keys(lease.ids[: lease.length], held.space)
            aligned = end if plan.fine or not plan.hybrid else end // plan.scheduler_block * plan.scheduler_block
            for table in held.tables:
                tokens = aligned
                if plan.hybrid and table.kind.ahead and aligned:
                    tokens = min(end, aligned + table.block)
                table.publish(Publishing(tokens, held.keys, lease.request.prompt_len, held.junction))
        held.copies.release(self.blocks)

    def _add(self, lease: Lease, token_id: int) -> None:
        """A token the model has just sampled."""
        lease.push(token_id)
        if self.plan.switches.publishes_with_output and self.plan.drafts:
            self._publish(lease, _held(lease), lease.computed_len)

    def _schedule_decode(self, lease: Lease) -> None:
        self._take(_held(lease), decode_step(self.plan, lease.length))

    def _room_for(self, lease: Lease, outputs: int) -> None:
        """Outputs longer than `max_tokens` (an engine that generated more)."""
        need = lease.request.prompt_len + outputs
        if not isinstance(lease.ids, Chained) and need > len(lease.ids):
            lease.ids = np.concatenate([lease.ids, np.empty(need - len(lease.ids), np.int32)])


def _room_slots(group: LayerGroup, blocks: int | None) -> int | None:
    assert group.block is not None
    return None if blocks is None else blocks * (1 if group.kind is Kind.GDN else group.block)


def _held(lease: Lease) -> Held:
    assert isinstance(lease.held, Held)
    return lease.held
