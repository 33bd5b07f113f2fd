"""llama.cpp's server: what a request reuses, with every option that decides it.

Source: llama.cpp tools/server/server-context.cpp (`process_single_task`, `update_slots`) at the commit inside
llama-cpp-python 0.3.36, executed with b11549. A request goes through

    1. the choice of a slot                                                  slots.py
    2. exchange with the RAM cache; the other idle slots are saved there too   ram_cache.py
    3. common prefix with the slot, lengthened by moved chunks               chunk_shift.py
    4. what the memory can go back to: as it is, to a checkpoint, or to 0    memory.py, checkpoints.py
    5. at most L-1
    6. prefill steps, with checkpoints taken before the last ones            checkpoints.py

Step 4: with n the common prefix, W the window (0 for recurrent states and for whole memories) and
`threshold = max(0, n - W)`, one less where the prompt has no token behind n, the memory is used as it is if its first
position lies below the threshold. A prefix shorter than the window therefore always needs a checkpoint. A window
checkpoint resumes one position below its end, a recurrent one at its end. One that was taken right where another had
been restored holds one position less than its resume point's window: the hit stands, and the engine computes on a
window with a hole (`backed_len` 0, `Lease.valid_from`).

Draft models change nothing here: their state travels with the slot and no token is dropped for them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from reference_engine.laws.base import Expectation, Law, Lease, PoolExhausted, Serve
from reference_engine.laws.llama_cpp.checkpoints import Checkpoint, CheckpointRule, newest_usable
from reference_engine.laws.llama_cpp.chunk_shift import chunks
from reference_engine.laws.llama_cpp.memory import (
    FullMemory,
    Memory,
    RecurrentMemory,
    Snapshot,
    WindowCells,
    WindowMemory,
    window_cells,
)
from reference_engine.laws.llama_cpp.places import Copy, Layout, Store
from reference_engine.laws.llama_cpp.ram_cache import LEAST_KEPT, Most, RamCache, share
from reference_engine.laws.llama_cpp.slots import Slot, SlotSet, below
from reference_engine.laws.memory import Room, Slots
from reference_engine.laws.parts.chained import Tokens, sequence, tokens_of
from reference_engine.laws.parts.history import History, common_prefix
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import Kind, LayerGroup
from vocabulary.ledger import Cause, Ledger

FULL = LayerGroup(Kind.FULL)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """llama-server's options, by its own names; defaults are hitparity's (`adapters/llama_cpp/options.py`)."""

    groups: tuple[LayerGroup, ...] = (FULL,)
    n_parallel: int = 1
    slot_prompt_similarity: float = 0.1
    n_ctx_slot: int | None = None
    """Tokens that one slot may hold; None: no limit (prediction only)."""
    n_batch: int = 2048
    n_ubatch: int = 512
    n_ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    swa_full: bool = False
    n_cache_reuse: int = 0
    kv_unified: bool = False
    """One range of cells for all slots."""
    cache_idle_slots: bool = True
    """Read only with a RAM cache."""

    @cached_property
    def window(self) -> int | None:
        """Window in tokens of layers that drop what lies behind it; None: no such layers, or `swa_full`."""
        if self.swa_full:
            return None
        return next((group.window for group in self.groups if group.kind is Kind.SWA), None)

    @cached_property
    def recurrent(self) -> bool:
        """Whether some layers keep one state only."""
        return any(group.kind is Kind.GDN for group in self.groups)

    @cached_property
    def whole(self) -> bool:
        """Whether every position is kept."""
        return self.window is None and not self.recurrent

    @cached_property
    def shared(self) -> bool:
        """Whether slots compete for cells."""
        return self.kv_unified and self.n_parallel > 1

    @property
    def window_cells(self) -> int:
        """Cells of one stream's window layers."""
        assert self.window is not None
        sequences = self.n_parallel if self.kv_unified else 1
        return window_cells(self.window, self.n_ubatch, sequences=sequences, most=self.n_ctx_slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What one request takes from its slot."""

    hit: int
    common: int
    """Common prefix with the slot's tokens."""
    cut: Cause | None = None
    """Why less than the common prefix is taken, the cap aside."""
    moved: int = 0
    """Tokens of the hit that were shifted there, now or by an earlier request."""
    backed: int | None = None
    """Tokens of the hit whose state belongs to this prompt; None: all."""


@dataclass(frozen=True, slots=True)
class Resident:
    """The most that each kind of place held of a prompt when it came, in tokens."""

    slots: int
    ram: int
    """Stored prompts that may be taken."""
    ram_refused: int
    """Stored prompts of which the request keeps too little."""


@dataclass(slots=True)
class Held:
    """What a lease holds."""

    slot: Slot
    owner: object = field(default_factory=object)
    """Stands for the request in its checkpoints."""
    looked_at: int | None = None
    """Start of the newest step for which a checkpoint has been considered."""
    stored: int = 0
    """Tokens behind which an engine has been told to leave a state."""


class LlamaCppServer(Law):
    """llama-server."""

    id = "llama.cpp"
    granule = 1
    can_salt = False

    def __init__(self, options: ServerOptions = ServerOptions(), ram: RamCache | None = None) -> None:
        """`ram` None: no RAM cache."""
        super().__init__()
        self.options, self.ram = options, ram
        cells = options.n_ctx_slot
        self._cells = cells or sys.maxsize
        self._layout = _layout(options, ram)
        if self._layout is not None:
            self.rooms = Store(self._layout, self.moves).rooms(options.groups)
        elif cells is None:
            self.rooms = tuple(Room(group, None) for group in options.groups)
        self.pool_tokens = None if cells is None else cells * (1 if options.shared else options.n_parallel)
        self.chunks_bind = not options.whole
        self.reset_forgets_all = ram is not None or options.n_parallel == 1
        self.reads_chains = not options.n_cache_reuse
        self._any_length = {str(group): group.kind is Kind.FULL or options.whole for group in options.groups}
        """By group, whether it can be cut back to any length."""
        self.rule = CheckpointRule(
            limit=0 if options.whole else options.n_ctx_checkpoints,
            min_step=options.checkpoint_min_step,
            n_batch=options.n_batch,
            n_ubatch=options.n_ubatch,
        )
        self._leases: set[Lease] = set()
        self._start()

    def admit(self, request: TokenRequest) -> Lease:
        """Choose a slot, exchange its content, and cut its sequence back to what the prompt can use of it."""
        ids = sequence(request)
        if len(ids) + request.max_tokens > self._cells:
            raise PoolExhausted(f"{len(ids)} + {request.max_tokens} tokens do not fit a slot of {self._cells}")
        common = self.set.common(ids)
        choice = self.set.choose(ids, common)
        if choice is None:
            raise PoolExhausted(f"all {len(self.set.slots)} slots are busy")
        slot, resident = choice.slot, self._resident(ids, max(common))
        mine = common[slot.number]
        if self.ram is not None and choice.exchange and self._exchange(slot, ids, self.ram):
            mine = common_prefix(slot.tokens, ids)
        slot.busy = True
        if self.ram is not None and self.options.cache_idle_slots:
            try:
                self._save_idle(self.ram)
            except LawDoesNotCover:
                slot.busy = False
                raise
        reuse = self._reuse(slot, ids, mine)
        lease = Lease(request, self._expect(ids, resident, reuse), ids)
        lease.held, lease.valid_from = Held(slot), self._window_from(slot, reuse.hit)
        slot.follow(lease.ids)
        self._leases.add(lease)
        return lease

    def chunk_end(self, lease: Lease) -> int:
        """Where the prefill step ends: at most `n_batch` tokens on, and where checkpoints are due.

        Takes the one due before the step, so that an engine copies it before the step overwrites what it is of.
        """
        end = self.rule.batch_end(lease.computed_len, lease.request.prompt_len)
        self._keep_checkpoint(lease, end)
        return end

    def computed(self, lease: Lease, end: int) -> None:
        """A prefill step, or generated tokens one by one; checkpoints are taken before a step."""
        start, prompt_len = lease.computed_len, lease.request.prompt_len
        if end <= start:
            return
        slot = self._held(lease).slot
        if start < prompt_len:
            step_end = min(end, prompt_len)
            self._keep_checkpoint(lease, step_end)
            self._decode(slot, start, step_end)
            start = step_end
        step = max(end - start, 1) if self.options.whole else 1  # others drop something at each
        for position in range(start, end, step):
            self._decode(slot, position, position + step)
        lease.computed_len = end
        self._forget_windows()

    def slots(self, lease: Lease, group: int, start: int, end: int) -> Slots:
        """As `Law.slots`; positions that are asked for the first time get their places now."""
        slot = self._held(lease).slot
        if self._layout is None:
            raise LawDoesNotCover(f"{self.id}: an engine needs places in number; set n_ctx_slot, state_bytes_per_token")
        self._make_room(slot, end)
        return self._store.at(slot.places, group, start, end)

    def state(self, lease: Lease, group: int, position: int) -> int:
        """As `Law.state`: one running state, whatever the position."""
        return self._held(lease).slot.places.state

    def stores(self, lease: Lease, group: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """As `Law.stores`: only the last one."""
        self._held(lease).stored = end
        return super().stores(lease, group, start, end)

    def append(self, lease: Lease, token_id: int) -> None:
        """The next cell of the range."""
        lease.push(token_id)

    def release(self, lease: Lease) -> None:
        """The slot is idle and keeps its tokens."""
        self.history.add(lease.ids[: lease.computed_len])
        held = self._held(lease)
        if held.stored > lease.computed_len:  # given up within a step that has overwritten the state
            held.slot.clear()
        held.slot.places.cut(lease.computed_len)
        self.set.release(held.slot)
        self._leases.remove(lease)

    def replay(self) -> Serve:
        """As `Law.replay`; where every position is kept and no slots compete, steps decide nothing and are one."""
        if self.options.shared or not self.options.whole or not self.reads_chains:
            return self.serve

        def serve(request: TokenRequest, output_ids: Sequence[int]) -> Expectation:
            lease = self.admit(request)
            self.computed(lease, lease.length + max(len(output_ids) - 1, 0))
            self.release(lease)
            return lease.expectation

        return serve

    def reset(self) -> None:
        """Erase every slot; their order of use stays. A RAM cache cannot be erased: then the server starts anew."""
        assert not self._leases, "reset while requests run"
        if self.ram is not None:
            self.ram.stored.clear()
            self._start()
            return
        for slot in self.set.slots:
            slot.clear()
        self.history.clear()

    def check_integrity(self) -> None:
        """Slots, leases, memories, checkpoints and places agree with one another."""
        held = [self._held(lease).slot.number for lease in self._leases]
        assert sorted(held) == [slot.number for slot in self.set.slots if slot.busy], "busy slots and leases disagree"
        for slot in self.set.slots:
            last = slot.memory.last
            assert slot.length == (0 if last is None else last + 1), f"slot {slot.number}: memory ends at {last}"
            assert slot.length <= self._cells, f"slot {slot.number} is longer than its cells"
            assert not slot.moved or slot.moved[-1][1] <= slot.length, f"slot {slot.number} lost what was moved"
            assert len(slot.checkpoints) <= self.rule.limit, f"slot {slot.number} has too many checkpoints"
            if self.moves.followed and not slot.busy:
                self._store.check_held(slot.places, slot.memory.first, slot.length)
        self._store.check(self._copies())
        for cells in self._window_cells:
            cells.check()
        if self.options.shared:
            assert sum(slot.length for slot in self.set.slots) <= self._cells, "more tokens than cells"

    def _start(self) -> None:
        """As a fresh server."""
        options = self.options
        self._window_cells: list[WindowCells] = []
        nothing = Layout(groups=options.groups, cells=0, window_cells=None, sequences=options.n_parallel)
        self._store = Store(self._layout or nothing, self.moves)
        self.set = SlotSet(options.slot_prompt_similarity, self._store.sequences, self._memory)
        self.history = History()

    def _memory(self, number: int) -> Memory:
        options = self.options
        if options.recurrent:
            return RecurrentMemory()
        if options.window is None:
            return FullMemory()
        if not options.kv_unified or not self._window_cells:
            self._window_cells.append(WindowCells(options.window_cells, options.window, options.n_ubatch))
        return WindowMemory(self._window_cells[-1], number)

    def _exchange(self, slot: Slot, ids: Tokens, ram: RamCache) -> bool:
        """Save what the slot holds and take over what suits the prompt better; whether the slot changed."""
        self._save(slot, ram)
        better = ram.better(slot.tokens, ids)
        if better is not None and self._free_cells(beside=slot) < len(better.ids):
            slot.clear()  # the server gives up half-way: the slot is empty and the stored prompt stays
        elif better is not None:
            slot.load(better)
            self._load(slot, better.state)
            ram.stored.remove(better)
        ram.trim()
        return better is not None

    def _save_idle(self, ram: RamCache) -> None:
        """Every idle slot is copied when a request starts, and emptied where slots share their cells."""
        for slot in self.set.idle():
            if self._save(slot, ram):
                ram.trim()
            if self.options.kv_unified:
                slot.clear()

    def _save(self, slot: Slot, ram: RamCache) -> bool:
        if not slot.length:
            return False
        state = slot.memory.snapshot()
        if not ram.save(slot.tokens, slot.moved, tuple(slot.checkpoints), state):
            return False
        ram.stored[-1] = replace(ram.stored[-1], state=self._copied(slot, state, whole=True))
        return True

    def _keep_checkpoint(self, lease: Lease, end: int) -> None:
        """Take the one that is due before the prefill step to `end`, once."""
        if not self.rule.limit:
            return
        held, start = self._held(lease), lease.computed_len
        if held.looked_at == start:
            return
        held.looked_at, slot = start, held.slot
        if self.rule.due(start, end, lease.request.prompt_len):
            state = self._copied(slot, slot.memory.snapshot(), whole=False)
            slot.checkpoints = self.rule.added(slot.checkpoints, Checkpoint(lease.ids[:start], state, held.owner))

    # Places

    def _copied(self, slot: Slot, state: Snapshot, *, whole: bool) -> Snapshot:
        """A snapshot with a copy in places of its own; `whole`: with the layers that keep every position."""
        if not self.moves.followed:
            return state
        kept = self._copies()
        copy = self._store.copy(slot.places, slot.length, state.window_first, whole=whole, kept=kept)
        return replace(state, copy=copy)

    def _load(self, slot: Slot, state: Snapshot) -> None:
        """The slot's memory has taken over `state`."""
        if state.copy is not None:
            self._forget_windows()
            self._store.load(slot.places, state.copy)

    def _forget_windows(self) -> None:
        """Window positions that the memories have dropped lie nowhere any more."""
        if not self.moves.followed or not self._window_cells:
            return
        for slot in self.set.slots:
            if (first := slot.memory.first) is not None:
                slot.places.window.drop_below(first)

    def _copies(self) -> Iterator[Copy]:
        """All that are needed still."""
        stored = self.ram.stored if self.ram is not None else []
        kept = [checkpoint for slot in self.set.slots for checkpoint in slot.checkpoints]
        kept += [checkpoint for each in stored for checkpoint in each.checkpoints]
        for state in (*(each.state for each in kept), *(each.state for each in stored)):
            if state.copy is not None:
                yield state.copy

    def _reuse(self, slot: Slot, ids: Tokens, common: int) -> Reuse:
        """Steps 3 to 5: the slot, with a `common` prefix, is cut back to the hit."""
        length, usable, checkpoint, cut = len(ids), common, None, None
        if self.options.n_cache_reuse and self.options.whole:
            held, asked = (tokens_of(each, "llama.cpp: n_cache_reuse") for each in (slot.tokens, ids))
            moves = chunks(held, asked, common, self.options.n_cache_reuse)
            usable = common + sum(run for _, _, run in moves)
            if self.moves.followed:
                self._store.turn(slot.places, common, moves)
            slot.moved = (*below(slot.moved, common), *((at, at + run) for _, at, run in moves))
        resume = usable
        if usable:
            threshold = max(0, usable - (self.options.window or 0) - (usable == length))
            first = slot.memory.first
            assert first is not None
            if not self.options.whole and first >= threshold:
                checkpoint = newest_usable(slot.checkpoints, usable, threshold)
                resume = 0
                if checkpoint is not None:
                    slot.memory.restore(checkpoint.state)
                    self._load(slot, checkpoint.state)
                    resume = min(usable, max(checkpoint.state.first + 1, checkpoint.state.last))
                cut = self._cut(checkpoint)
        slot.checkpoints = [each for each in slot.checkpoints if each.state.last <= resume]
        hit = resume if checkpoint is None else min(resume, checkpoint.length)
        hit = min(hit, length - 1)
        slot.shrink(hit)
        moved = sum(end - start for start, end in slot.moved)
        backed = None
        if checkpoint is not None and (own := common_prefix(checkpoint.ids, ids)) < hit:
            backed = own
        if hit and self._window_from(slot, hit):
            backed = 0
        return Reuse(hit=hit, common=common, cut=cut, moved=moved, backed=backed)

    def _window_from(self, slot: Slot, hit: int) -> int:
        """First position that the window of the first new token really has; 0: it is whole."""
        first = slot.memory.first
        if self.options.window is None:
            return 0
        if first is None:
            return hit
        return first if first > hit - self.options.window + 1 else 0

    def _cut(self, checkpoint: Checkpoint | None) -> Cause:
        if checkpoint is not None:
            return Cause.CHECKPOINT
        return Cause.NO_STATE if self.options.recurrent else Cause.WINDOW

    def _decode(self, slot: Slot, start: int, end: int) -> None:
        """One step."""
        if self.options.shared:
            self._make_room(slot, end)
        slot.memory.decode(start, end)
        slot.length = end

    def _make_room(self, slot: Slot, end: int) -> None:
        """Idle slots give way to one of `end` tokens where cells are shared and have run out."""
        while self._free_cells(beside=slot) < end:
            purged = next((each for each in self.set.idle() if each.length), None)
            if purged is None:
                raise PoolExhausted(f"{end} tokens do not fit beside those of the running requests in {self._cells}")
            purged.clear()

    def _free_cells(self, *, beside: Slot) -> int:
        """Cells that this slot has or could have."""
        if not self.options.shared:
            return self._cells
        others = [slot for slot in self.set.slots if slot is not beside]
        return self._cells - sum(max(slot.length, slot.places.full.end) for slot in others)

    def _resident(self, ids: Tokens, slots: int) -> Resident:
        most = defaultdict[bool, int](int)
        for each in self.ram.stored if self.ram is not None else ():
            common = common_prefix(each.ids, ids)
            enough = bool(share(common, len(each.ids)) >= LEAST_KEPT)
            most[enough] = max(most[enough], common)
        return Resident(slots, most[True], most[False])

    def _expect(self, ids: Tokens, resident: Resident, reuse: Reuse) -> Expectation:
        length = len(ids)
        takeable = max(resident.slots, resident.ram, reuse.common)
        anywhere = max(takeable, resident.ram_refused)
        ceilings = [
            # A sequence still being computed is in its slot before it is history; moved chunks are in no history.
            (Cause.NOVEL, max(self.history.lcp(ids), anywhere, reuse.hit)),
            (Cause.LAST_TOKEN, length - 1),
            (Cause.EVICTED, max(anywhere, reuse.hit)),
            (Cause.MIN_REUSE, max(takeable, reuse.hit)),
            (Cause.SLOT, max(reuse.common, reuse.hit)),
        ]
        if reuse.cut is not None:
            ceilings.append((reuse.cut, reuse.hit))
        full = max(min(reuse.common, length - 1), reuse.hit)
        return Expectation(
            hit_len=reuse.hit,
            position_start=reuse.hit,
            ledger=Ledger.waterfall(length, ceilings),
            per_group={name: full if any_length else reuse.hit for name, any_length in self._any_length.items()},
            junction=reuse.hit,
            backed_len=reuse.backed,
            approximate_len=reuse.moved,
        )

    @staticmethod
    def _held(lease: Lease) -> Held:
        assert isinstance(lease.held, Held)
        return lease.held


def _layout(options: ServerOptions, ram: RamCache | None) -> Layout | None:
    """The places that an engine needs; None where there is no limit to them."""
    if options.n_ctx_slot is None:
        return None
    window = 0 if options.window is None else min(options.window, options.window_cells)
    stored = Most(0, 0, 0) if ram is None else ram.most(options.n_ctx_slot, window, options.n_ctx_checkpoints)
    if stored is None:
        return None
    # A new checkpoint is there before the one it replaces goes.
    own = 0 if options.whole else options.n_parallel * options.n_ctx_checkpoints + 1
    sequences = options.n_parallel if options.kv_unified else 1
    return Layout(
        groups=options.groups,
        cells=options.n_ctx_slot,
        window_cells=None if options.window is None else options.window_cells + sequences * options.n_batch,
        sequences=options.n_parallel,
        unified=options.kv_unified,
        copied_tokens=stored.tokens,
        copied_window_cells=own * window + (stored.window_cells if window else 0),
        copied_states=(own + stored.states) if options.recurrent else 0,
    )
