"""TensorRT-LLM V2, the radix tree manager (1.3 and 1.4 line).

    tokens = prompt[:L-1] ; the match loses its last reuse_match_backoff tokens
    follow whole blocks, then a short block of the same tokens, then, with enable_partial_reuse, the child with the
        most equal leading tokens (unless the node has 32 children or more)
    until nothing shortens: recurrent state: cut to the deepest kept position ; each kind of attention: cut to what
        its pages cover of the blocks it needs (all, or sink blocks and the window with one token in flight)

Committed are prompts only: generated tokens are never reusable (V1 stores them). With recurrent layers only declared
snapshot points are committed, so the exact repeat of a prompt with a snapshot at its end misses that snapshot.

Source: tensorrt_llm/runtime/kv_cache_manager_v2 and its executor adapter, llmapi MambaStateConfig and BlockReuseConfig
of 1.4.0rc4; read, not executed.
ASSUMPTION: a chunk of `max_num_tokens` that does not end the prompt ends at a block border; None is one chunk.
ASSUMPTION: `sink_token_length` reaches every sliding window and no full attention.
Not stated, so refused or left out: eviction, per_conversation, enable_branch_snapshot, scratch pages, and requests
that wait for a running one with the same prefix (PR 18195): they are answered as if admitted at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reference_engine.laws.base import Expectation, Law, Lease
from reference_engine.laws.memory import Room, Slots
from reference_engine.laws.tensorrt_llm.published import Published, scope_of
from reference_engine.laws.tensorrt_llm.v2_tree import AttentionCycle, RadixTree, TreeBlock
from vocabulary.engine import TokenRequest
from vocabulary.groups import Kind, LayerGroup
from vocabulary.ledger import Cause, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options, resolved."""

    tokens_per_block: int
    enable_block_reuse: bool
    enable_partial_reuse: bool
    reuse_match_backoff: int
    """Tokens every match loses at its end: draft layers in the same pool read that far ahead."""
    window_only: bool
    """`commit_min_snapshot`, or a policy that commits when the window has moved on: no page outside it is kept."""
    commit_at_end_only: bool
    """False: a commit after every chunk (`all_reusable`)."""
    periodic_snapshot_interval: int
    """0: none."""
    offsets_from_start: tuple[int, ...]
    offsets_from_end: tuple[int, ...]
    sink_blocks: int
    chunk_tokens: int | None

    def snapshots(self, prompt_len: int) -> tuple[int, ...]:
        """Positions at which a prompt's recurrent state is kept, in order."""
        points = {*self.offsets_from_start, *(prompt_len - offset for offset in self.offsets_from_end)}
        if self.periodic_snapshot_interval:
            points.update(range(self.periodic_snapshot_interval, prompt_len + 1, self.periodic_snapshot_interval))
        return tuple(sorted(point for point in points if 0 < point <= prompt_len))


@dataclass(slots=True)
class HeldV2:
    """What a lease pins, as block tables; page numbers count per group."""

    found: tuple[TreeBlock, ...]
    committed: int
    """Tokens committed or found."""
    tables: dict[str, list[int | None]]
    """Attention group to the page of each block; None: out of the window when the request began, so never read."""
    shared: dict[str, int]
    """Attention group to the leading blocks of its table that belong to the tree and are read-only."""
    state: int | None
    """The running state of all recurrent groups; None: there is none."""


class TrtllmV2(Law):
    """One radix tree for all groups."""

    def __init__(self, law_id: str, groups: Sequence[LayerGroup], settings: Settings) -> None:
        super().__init__()
        self.rooms, self._texts = tuple(Room(group, None) for group in groups), tuple(map(str, groups))
        self.id, self.granule, self.pool_tokens = law_id, settings.tokens_per_block, None
        self.settings = settings
        self._recurrent = {str(group) for group in groups if group.kind is Kind.GDN}
        attention = {str(group): group.window for group in groups if group.kind is not Kind.GDN}
        self.chunks_bind = settings.window_only
        self._cycle = {text: index for index, text in enumerate(attention)}
        self.tree = RadixTree(
            settings.tokens_per_block,
            [
                AttentionCycle(window, settings.sink_blocks if window is not None else 0)
                for window in attention.values()
            ],
        )
        self.published = Published()

    def admit(self, request: TokenRequest) -> Lease:
        """Match, hold what was found, copy a block that is found in part, take pages for the rest of the prompt."""
        self.published.admitted(self.id, request)
        expectation, found = self._look_up(request)
        lease = Lease(request, expectation)
        lease.held = self._hold(found, expectation.hit_len, -(-request.prompt_len // self.granule))
        self.published.open(lease)
        return lease

    def _hold(self, found: tuple[TreeBlock, ...], hit: int, blocks: int) -> HeldV2:
        whole, tables, shared = hit // self.granule, dict[str, list[int | None]](), dict[str, int]()
        for text, cycle in self._cycle.items():
            needed = set(self.tree.cycles[cycle].needed(hit, self.granule))
            pages = [block.pages[cycle] if index in needed else None for index, block in enumerate(found[:whole])]
            book = self.tree.pages[cycle]
            book.share(page.number for page in pages if page is not None)
            new = book.take(blocks - whole)
            if (part := hit % self.granule) and (page := found[whole].pages[cycle]) is not None:
                tokens = np.arange(part)
                self._move(text, page.number * self.granule + tokens, new[0] * self.granule + tokens)
            tables[text] = [*(None if page is None else page.number for page in pages), *new]
            shared[text] = whole
        state = self.tree.states.take(1)[0] if self._recurrent else None
        if state is not None and found and (kept := found[-1].state) is not None:
            self._move_states(kept.number, state)
        return HeldV2(found=found, committed=hit, tables=tables, shared=shared, state=state)

    def _move(self, text: str, source: Slots, target: Slots) -> None:
        for group, each in enumerate(self._texts):
            if each == text:
                self.moves.add(group, source, target)

    def _move_states(self, source: int, target: int) -> None:
        for text in self._recurrent:
            self._move(text, np.array([source]), np.array([target]))

    def chunk_end(self, lease: Lease) -> int:
        """The next snapshot point, or the chunk budget, or the prompt's end."""
        ends = [lease.request.prompt_len]
        if self.settings.chunk_tokens is not None:
            reach = lease.computed_len + self.settings.chunk_tokens
            ends.append(reach if reach >= ends[0] else reach // self.granule * self.granule)
        if self._recurrent:
            ends += [p for p in self.settings.snapshots(lease.request.prompt_len) if p > lease.computed_len]
        return min(ends)

    def computed(self, lease: Lease, end: int) -> None:
        """Commit what the policy commits; nothing past the prompt."""
        lease.computed_len = max(lease.computed_len, end)
        held, prompt_len = self._held(lease), lease.request.prompt_len
        reached = min(lease.computed_len, prompt_len)
        if self._recurrent:
            points: tuple[int, ...] = self.settings.snapshots(prompt_len)
        else:
            points = (prompt_len,) if self.settings.commit_at_end_only else (reached,)
        for point in points:
            if self.settings.enable_block_reuse and held.committed < point <= reached:
                scope = scope_of(lease.request)
                own = [
                    [None if index < held.shared[text] else page for index, page in enumerate(table)]
                    for text, table in held.tables.items()
                ]
                kept = self._kept_state(held, at_point=point == lease.computed_len)
                self.tree.commit(scope, lease.ids[:point], own, kept, window_only=self.settings.window_only)
                self.tree.states.drop([] if kept is None else [kept])
                self.published.findable(lease.ids[:point], scope)
                held.committed = point

    def _kept_state(self, held: HeldV2, *, at_point: bool) -> int | None:
        """A copy of the running state, which moves on."""
        if held.state is None:
            return None
        assert at_point or not self.moves.followed, "a step went beyond a snapshot point; end steps at chunk_end"
        kept = self.tree.states.take(1)[0]
        self._move_states(held.state, kept)
        return kept

    def append(self, lease: Lease, token_id: int) -> None:
        """A generated token; it will never be committed. Takes pages when the last ones are full."""
        for text, table in self._held(lease).tables.items():
            if lease.length == len(table) * self.granule:
                table.extend(self.tree.pages[self._cycle[text]].take(1))
        lease.push(token_id)

    def release(self, lease: Lease) -> None:
        """Let go; pages that were not committed are free."""
        held = self._held(lease)
        for text, table in held.tables.items():
            self.tree.pages[self._cycle[text]].drop(page for page in table if page is not None)
        self.tree.states.drop([] if held.state is None else [held.state])
        self.published.close(lease)

    def reset(self) -> None:
        """Forget everything."""
        self.published.clear()
        self.tree.clear()

    def check_integrity(self) -> None:
        """The tree is well formed, every lease holds a path of it, and pages are free, in the tree or held."""
        live = [self._held(lease) for lease in self.published.live]
        self.tree.check_integrity(
            [[page for held in live for page in held.tables[text] if page is not None] for text in self._cycle],
            [held.state for held in live if held.state is not None],
        )
        for lease in self.published.live:
            held = self._held(lease)
            assert held.committed <= lease.request.prompt_len, "committed past the prompt"
            for block, below in zip(held.found, held.found[1:], strict=False):
                assert below.parent is block, "held blocks are no path"
            for text, table in held.tables.items():
                assert len(table) == -(-lease.length // self.granule), f"{text}: table and length disagree"
                assert None not in table[held.shared[text] :], f"{text}: a block of the request's own has no page"
        own = [
            (text, page)
            for lease in self.published.live
            for text, table in self._held(lease).tables.items()
            for page in table[self._held(lease).shared[text] :]
        ]
        assert len(set(own)) == len(own), "page owned by two requests"

    def slots(self, lease: Lease, group: int, start: int, end: int) -> Slots:
        """As `Law.slots`; TypeError for positions before the window that the request began with."""
        first, position = start // self.granule, np.arange(start, end)
        pages = np.array(self._held(lease).tables[self._texts[group]][first : -(-end // self.granule)], np.int64)
        places: Slots = pages[position // self.granule - first] * self.granule + position % self.granule
        return places

    def state(self, lease: Lease, group: int, position: int) -> int:
        """As `Law.state`: one running state, whatever the position."""
        state = self._held(lease).state
        assert state is not None
        return state

    def _look_up(self, request: TokenRequest) -> tuple[Expectation, tuple[TreeBlock, ...]]:
        settings, tree = self.settings, self.tree
        limit = request.prompt_len - 1 if settings.enable_block_reuse else 0
        ids = request.array[:limit]
        raw, reachable = tree.match(scope_of(request), ids, partial=settings.enable_partial_reuse)
        backed_off = tree.cut(raw, max(raw.tokens - settings.reuse_match_backoff, 0))
        everything = tuple(self._cycle.values())
        attention = tree.prune(backed_off, everything, state=False)
        match = tree.prune(backed_off, everything, state=bool(self._recurrent))
        # A group alone: attention groups by their own pages, the recurrent one by its positions.
        per_group = {t: tree.prune(backed_off, (c,), state=False).tokens for t, c in self._cycle.items()}
        per_group |= {text: tree.prune(backed_off, (), state=True).tokens for text in self._recurrent}
        ceilings = self.published.ceilings(request, Cause.NO_STATE if self._recurrent else Cause.EVICTED)
        if settings.enable_block_reuse:
            ceilings += [
                (Cause.EVICTED, reachable),
                (Cause.GRANULE, raw.tokens),
                (Cause.SPEC_DROP, backed_off.tokens),
                (Cause.WINDOW, attention.tokens),
                (Cause.NO_STATE, match.tokens),
            ]
        else:
            ceilings[-1] = (Cause.DISABLED, 0)
        expectation = Expectation(
            hit_len=match.tokens,
            position_start=match.tokens,
            ledger=Ledger.waterfall(request.prompt_len, ceilings),
            per_group=per_group,
            junction=match.tokens,
        )
        return expectation, match.blocks

    @staticmethod
    def _held(lease: Lease) -> HeldV2:
        assert isinstance(lease.held, HeldV2)
        return lease.held
