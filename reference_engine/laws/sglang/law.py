"""SGLang: a page radix tree for full attention, alone or with sliding windows or recurrent states.

Source: SGLang 0.5.23, srt/managers/{scheduler,schedule_policy,schedule_batch}.py and srt/mem_cache, executed.

    limit = L-1; with log-probabilities of the prompt from position s on: min(L-1, s)
    hit   = the deepest boundary of the tree on the path of the first `limit` tokens, in whole pages, where
            - full attention: always (a partly matching edge is split there)
            - sliding window W: the W tokens before it have their window, or all of them
            - recurrent: a state is kept exactly there

- EAGLE's keys are pairs of tokens, so a boundary needs the token behind it too (not in trees with recurrent states).
- The whole prompt is looked up once, then prefilled in chunks. Chunk ends and finished requests are inserted, with
  the generated tokens; with recurrent states only up to the last kept state.
- `no_buffer` keeps the state at each insertion's end; `extra_buffer` one per prefill step at start + whole grids, or at
  the point where full attention matched further than the states did, and during decode at the track grid.
- Windows of finished stretches are freed as the prefill goes on (tombstones); an insertion stops where full attention
  matched and the window did not, so that the next sibling finds it.
- A cache salt has a tree of its own.

`send` is for one request at a time; requests that wait together change each other's steps (`queue.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from reference_engine.laws.base import Law, Lease, PoolExhausted
from reference_engine.laws.memory import Room, Slots
from reference_engine.laws.parts.chained import Tokens, sequence
from reference_engine.laws.parts.history import History
from reference_engine.laws.parts.page_radix import PageRadixTree, RadixNode
from reference_engine.laws.sglang.config import SglangConfig
from reference_engine.laws.sglang.explain import Lookup, explain
from reference_engine.laws.sglang.held import Held, key_len, keyed
from reference_engine.laws.sglang.insertion import Inserter
from reference_engine.laws.sglang.pools import Pools
from vocabulary.engine import Feature, TokenRequest
from vocabulary.groups import Kind

CLIP_NEW_TOKENS = 4096
"""Output tokens that admission reserves at most."""
RESERVED_TOKENS = 6
"""Tokens of the pool that no request may count on."""
WAITING_REFRESH = 32
"""Every that many schedulings of waiting requests, their whole prompts count as used (LRU order)."""
WINDOW_DECODE_INTERVAL = 128
"""Tokens that leave the window during decode before they are freed (SGLANG_SWA_EVICTION_INTERVAL)."""


class SglangLaw(Law):
    """One tree over a pool of pages, a pool of sliding-window pages and a pool of states."""

    reads_chains = True

    def __init__(self, config: SglangConfig) -> None:
        super().__init__()
        self.config = config
        sizes = {Kind.FULL: config.pool_tokens, Kind.SWA: config.window_pool_tokens, Kind.GDN: config.state_slots}
        self.rooms = tuple(Room(group, sizes[group.kind]) for group in config.groups)
        self.chunks_bind = not config.eager
        self._recurrent = len(config.groups) - 1
        """Place of the recurrent group, if there is one."""
        self.id, self.granule = f"sglang@{config.version}", config.page
        self.pool_tokens = config.pool_tokens
        self.tree = PageRadixTree(config.page, window=config.window)
        self.pools = Pools(config, self.tree)
        self.inserter = Inserter(config, self.tree, self.pools)
        self.history, self.published = History(), History()
        self._leases: set[Lease] = set()
        self._schedulings = 0

    # Admission

    def admit(self, request: TokenRequest) -> Lease:
        """Look up, lock the path, take what the first step needs (all of the prompt for the reference engine)."""
        ids = sequence(request)
        self._refresh_waiting(ids, request.namespace)
        limit = request.prompt_len - 1 if self.config.enabled else 0
        if Feature.PROMPT_LOGPROBS in request.features:
            limit = min(limit, self.config.logprob_start)
        path = self.tree.match(keyed(ids, self.config), key_len(limit, self.config), request.namespace)
        node, matched = self._usable(path), path[-1].end
        self._use(node)
        branching = self._branching(matched, node.end)
        looked_up = Lookup(limit=limit, matched=matched, hit=node.end, junction=branching or node.end)
        held = Held(self.tree.lock(node), self.granule)
        lease = Lease(request, explain(self.config, self.history, self.published, ids, request, looked_up), ids)
        lease.held = held
        try:
            self._reserve(lease, held, node, branching)
        except PoolExhausted:
            self._drop(held)
            raise
        self._leases.add(lease)
        return lease

    def chunk_end(self, lease: Lease, budget: int | None = None) -> int:
        """End of the next prefill step, of at most `budget` tokens if others share it; takes the pages it needs."""
        held, end = self._held(lease), lease.request.prompt_len
        if self.config.eager:
            return end
        rest = end - lease.computed_len
        chunk, first = self._chunk_limit(lease, rest), lease.computed_len == lease.expectation.position_start
        if budget is not None:
            chunk = budget if chunk is None else min(chunk, budget)
        # The first step counts and ends in whole pages; with a chunk of broken pages the later ones do not.
        if chunk is not None and (-(-rest // self.granule) * self.granule if first else rest) > chunk:
            end = lease.computed_len + (chunk // self.granule * self.granule if first else chunk)
        if end <= lease.computed_len:
            raise PoolExhausted(f"{self.id}: no page left for the next step of request {lease.request.request_id}")
        extra = 0 if self.granule == 1 else self.granule
        self._extend(held, end, room_tokens=end - lease.computed_len + extra)
        return end

    def matched(self, request: TokenRequest) -> int:
        """Tokens of the whole prompt that every layer group could resume after; counts as a use."""
        return self._use_prefix(sequence(request), request.namespace).end

    def expect(self, leases: Iterable[Lease]) -> None:
        """Leases whose `finish` will follow."""
        self._sent.update((lease.request.request_id, lease) for lease in leases)

    def _usable(self, path: Sequence[RadixNode]) -> RadixNode:
        """The deepest node of a path from the root that every layer group can resume at."""
        window = self.config.window
        if self.config.plain:
            return path[-1]
        best, *nodes = path
        # Live window tokens before the boundary; all of them count where no tombstone lies above.
        live: float = np.inf
        for node in nodes:
            if window is None:
                good = node.state is not None
            else:
                live = 0 if node.window is None else live + node.end - node.start
                good = live >= window
            if good:
                best = node
        return best

    def _branching(self, matched: int, hit: int) -> int | None:
        """Where full attention matched beyond the hit and the next sibling will be able to resume."""
        if self.config.strategy is not None:
            matched = matched // self.config.state_grid * self.config.state_grid
        elif self.config.window is None:
            return None
        return matched if matched > hit else None

    def _use(self, node: RadixNode) -> None:
        self.tree.refresh(node)
        if self.config.window is not None:
            self.inserter.use_window(node)
        if node.state is not None:
            self.tree.state_recency.use(node)

    def _refresh_waiting(self, ids: Tokens, namespace: str | None) -> None:
        if self._schedulings % WAITING_REFRESH == 0 and self.config.enabled:
            self._use_prefix(ids, namespace)
        self._schedulings += 1

    def _use_prefix(self, ids: Tokens, namespace: str | None) -> RadixNode:
        """Whatever of a whole prompt could be resumed after counts as used."""
        node = self._usable(self.tree.match(keyed(ids, self.config), key_len(len(ids), self.config), namespace))
        self._use(node)
        return node

    def _reserve(self, lease: Lease, held: Held, node: RadixNode, branching: int | None) -> None:
        """Pages, states and the way on; PoolExhausted when the request would wait for ever or find nothing."""
        config, pools = self.config, self.pools
        if config.strategy is not None:
            if node.state is not None:
                # The state of the hit is copied before anything can drop it.
                held.state = pools.take_states(1)[0]
                self.moves.add(self._recurrent, node.state, held.state)
            held.branching = branching
        else:
            held.window_branching = branching
        if not config.eager:
            self._check_admission(lease)
        if config.strategy is not None:
            wanted = (held.state is None) + config.tracks
            if wanted:
                slots = pools.take_states(wanted)
                held.state = slots.pop(0) if held.state is None else held.state
                held.track_slot = slots.pop() if config.tracks else None
        if config.eager:
            self._extend(held, lease.request.prompt_len, room_tokens=None)

    def _check_admission(self, lease: Lease) -> None:
        """SGLang admits what fits with its output and a page to spare; alone, a request would wait for ever."""
        config, request = self.config, lease.request
        if not config.enabled:
            return
        prompt_len = request.prompt_len
        length = prompt_len + request.max_tokens
        if config.pool_tokens is not None and length > (most := config.pool_tokens - RESERVED_TOKENS):
            raise PoolExhausted(
                f"{self.id}: request {request.request_id} has {length} prompt and output tokens, more than the {most} "
                f"that SGLang takes with max_total_tokens = {config.pool_tokens}"
            )
        extend = prompt_len - lease.computed_len
        new = min(request.max_tokens, CLIP_NEW_TOKENS)
        total, room = extend + new + self.granule, self.pools.free_full_tokens()
        if room is not None and total >= room:
            raise PoolExhausted(
                f"{self.id}: request {request.request_id} needs more than {total} tokens, the pool has {room} "
                f"(max_total_tokens = {config.pool_tokens}); SGLang would let it wait for ever"
            )

    def _chunk_limit(self, lease: Lease, rest: int) -> int | None:
        """Most tokens of the next step; the sliding-window pool can shorten it."""
        config = self.config
        limit, pool = config.chunk, config.window_pool_tokens
        if pool is None or (free := self.pools.free_window_tokens()) is None:
            return limit
        new = min(lease.request.max_tokens, CLIP_NEW_TOKENS)
        if lease.computed_len > lease.expectation.position_start:
            full = self.pools.free_full_tokens()
            assert full is not None
            return None if limit is None else min(limit, full, free - self.granule)
        needed = self._window_tokens(-(-rest // self.granule) * self.granule, new, limit)
        if needed < free:
            return limit
        cap = (free - self._window_tokens(0, new, None)) // self.granule * self.granule
        if needed < pool or limit is None or cap <= 0:
            raise PoolExhausted(
                f"{self.id}: request {lease.request.request_id} needs {needed} sliding-window tokens, {free} of {pool} "
                f"are left; SGLang would let it wait for ever"
            )
        return min(limit, cap)

    def _window_tokens(self, extend: int, new: int, chunk: int | None) -> int:
        """Sliding-window tokens that admission reserves for one step and the decode after it."""
        assert self.config.window is not None
        allocated = extend if chunk is None else min(extend, chunk)
        return max(allocated - self.config.window, 0) + min(extend + new, self.config.window) + self.granule

    def _extend(self, held: Held, end: int, *, room_tokens: int | None) -> None:
        """Take the pages up to position `end`."""
        wanted = -(-(end - held.capacity) // self.granule)
        pages, window = self.pools.take(
            wanted, room_tokens=wanted * self.granule if room_tokens is None else room_tokens
        )
        held.pages = np.concatenate([held.pages, pages]) if len(held.pages) else pages
        if self.config.window is not None:
            held.window_pages = np.concatenate([held.window_pages, window])

    # Memory

    def slots(self, lease: Lease, group: int, start: int, end: int) -> Slots:
        """As `Law.slots`."""
        held, position = self._held(lease), np.arange(start, end)
        path = self.tree.path(held.node)
        if self.config.groups[group].kind is Kind.FULL:
            pages = np.concatenate([*(node.pages for node in path), held.pages])
        else:  # nobody asks for what a tombstone has lost
            windows = [np.zeros_like(node.pages) if node.window is None else node.window for node in path]
            pages = np.concatenate([*windows, held.window_pages])
        places: Slots = pages[position // self.granule] * self.granule + position % self.granule
        return places

    def state(self, lease: Lease, group: int, position: int) -> int:
        """As `Law.state`: one running state, whatever the position."""
        held = self._held(lease)
        assert held.state is not None
        return held.state

    def stores(self, lease: Lease, group: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """As `Law.stores`: the kept state, which may also be the last one, and the running one."""
        held = self._held(lease)
        kept = self._tracked(held, start, end) if end <= lease.request.prompt_len else self._tracked_decode(start, end)
        last = (end, self.state(lease, group, end))
        if not self.config.tracks or kept is None or kept == end:  # at the end it is copied afterwards
            return (last,)
        assert held.track_slot is not None
        return (kept, held.track_slot), last

    # Progress

    def computed(self, lease: Lease, end: int) -> None:
        """Publish a chunk end, and the prompt's end of a request that goes on to decode; keep states on their grid."""
        start = lease.computed_len
        if end <= start:
            return
        prompt_len = lease.request.prompt_len
        lease.computed_len = end
        held = self._held(lease)
        if end > prompt_len:
            self._keep(held, self._tracked_decode(max(start, prompt_len), end), end)
            return
        if self.config.tracks:
            self._keep(held, self._tracked(held, start, end), end)
        if end < prompt_len or lease.request.max_tokens > 1:
            self._publish(lease, held, end, finished=False)
        if end == prompt_len:
            self.history.add(lease.ids[:end], lease.request.namespace)

    def publish_finished(self, lease: Lease) -> None:
        """Insert prompt and output of a request that has ended; `release` does it where nobody did before."""
        self._publish(lease, self._held(lease), lease.computed_len, finished=True)

    def _keep(self, held: Held, position: int | None, end: int) -> None:
        """A state has been kept at a position of a step that ends at `end`."""
        if position is None:
            return
        held.tracked_len = position
        if position == end:
            assert held.state is not None and held.track_slot is not None
            self.moves.add(self._recurrent, held.state, held.track_slot)

    def _tracked(self, held: Held, start: int, end: int) -> int | None:
        """The state this step keeps: the last on the grid counted from its start, or the branching point before."""
        config, branching = self.config, held.branching
        if end - start < config.state_grid:
            return None
        last = start + (end - start) // config.state_grid * config.state_grid
        if branching is not None and start < branching < last and not (branching - start) % config.state_chunk:
            return branching
        return last

    def _tracked_decode(self, start: int, end: int) -> int | None:
        last = end // self.config.track_grid * self.config.track_grid
        return last if self.config.tracks and last > start else None

    def _publish(self, lease: Lease, held: Held, end: int, *, finished: bool) -> None:
        """Insert what was computed up to `end` and move the lock there."""
        config = self.config
        if not config.enabled:
            return
        length, stops_at_branch = end, False
        if config.tracks:
            length = min(end, held.tracked_len or 0)
        branching = held.window_branching
        # The key of n pairs spans n + 1 tokens.
        if branching is not None and held.shared < branching <= end - config.bigram:
            length, stops_at_branch = branching + config.bigram, True
        if not finished:
            self._free_window(held, key_len(length, config) - 1)
        if length > 0:
            state = self._donated(held, finished=finished)
            whole = key_len(length, config) // self.granule * self.granule
            node = self.inserter.insert(keyed(lease.ids, config), whole, held, state)
            if whole and not config.plain:
                self.published.add(lease.ids[:length], lease.request.namespace)
            assert held.lock is not None, "a request that has ended goes on"
            self.tree.unlock(held.lock)
            held.hand_over(node, None if finished else self.tree.lock(node))
        if not finished:
            held.tracked_len = None
        if stops_at_branch:
            held.window_branching = None
            if not finished:
                self._free_window(held, key_len(end, config) - 1)

    def _donated(self, held: Held, *, finished: bool) -> int | None:
        """The state that goes to the tree: the kept one, or the running one (a copy while the request goes on)."""
        if self.config.strategy is None:
            return None
        if self.config.tracks:
            donated = held.track_slot
            held.track_slot = None if finished else self.pools.take_states(1)[0]
        elif finished:
            donated, held.state = held.state, None
        else:
            donated = self.pools.take_states(1)[0]
            assert held.state is not None
            self.moves.add(self._recurrent, held.state, donated)
        return donated

    def _free_window(self, held: Held, until: int, *, interval: int = 1) -> None:
        """Free window pages that no position from `until` on attends to, but not those of the tree."""
        window, page = self.config.window, self.granule
        if window is None or until - window < held.window_from + interval:
            return
        start = held.private_window_from
        kept = -(-max(window, page) // page) * page
        end = max(start, until - kept) // page * page
        held.window_from = max(start, end)
        self.pools.window.give_back(held.window_pages[held.part(start, end)])

    # Decode

    def append(self, lease: Lease, token_id: int) -> None:
        """A generated token; it gets a page unless it is the last, which is never computed."""
        held, generated = self._held(lease), lease.length - lease.request.prompt_len + 1
        lease.push(token_id)
        if generated >= lease.request.max_tokens:
            return
        if self.pools.full.size is not None and not self.config.eager and not (lease.length - 1) % self.granule:
            self.pools.make_room(self.granule)
        if generated > 1:
            self._free_window(held, lease.length - 1, interval=WINDOW_DECODE_INTERVAL)
        if lease.length > held.capacity:
            self._extend(held, lease.length, room_tokens=self.granule)
        elif not self.config.eager:
            self.pools.make_room(self.granule)

    def accepted(self, lease: Lease, token_ids: Sequence[int]) -> None:
        """As `Law.accepted`, at once: of several grid points in one step, the last one's state is kept."""
        for token_id in token_ids[:-1]:
            self.append(lease, token_id)
        self.computed(lease, lease.length)
        self.append(lease, token_ids[-1])

    def release(self, lease: Lease) -> None:
        """Publish prompt and output, unlock, and give back what the tree did not take."""
        held, request = self._held(lease), lease.request
        decoded = lease.computed_len - request.prompt_len
        if held.lock is not None and decoded >= 0:
            self.publish_finished(lease)
        if decoded > 0:
            self.history.add(lease.ids[: lease.computed_len], request.namespace)
        self._drop(held)
        self._leases.remove(lease)

    def _drop(self, held: Held) -> None:
        if held.lock is not None:
            self.tree.unlock(held.lock)
        self.pools.full.give_back(held.pages)
        if self.config.window is not None:
            self.pools.window.give_back(held.own_window)
        for slot in (held.state, held.track_slot):
            if slot is not None:
                self.pools.give_back_state(slot)

    # Books

    def reset(self) -> None:
        """Forget everything."""
        assert not self._leases, "reset while requests run"
        self.tree.clear()
        self.pools.clear()
        self.history.clear()
        self.published.clear()
        self._schedulings = 0

    def check_integrity(self) -> None:
        """Every page and state is free, in the tree, or one request's own; only requests lock paths."""
        self.tree.check_integrity()
        nodes, held = list(self.tree.nodes()), [self._held(lease) for lease in self._leases]
        windows = [node.window for node in nodes if node.window is not None]
        states = [node.state for node in nodes if node.state is not None]
        own = [slot for each in held for slot in (each.state, each.track_slot) if slot is not None]
        empty = np.empty(0, np.int64)
        self.pools.full.check_integrity(
            np.concatenate([empty, *(n.pages for n in nodes), *(each.pages for each in held)])
        )
        self.pools.window.check_integrity(np.concatenate([empty, *windows, *(each.own_window for each in held)]))
        self.pools.states.check_integrity(np.array([*states, *own], np.int64))
        assert self._leases or not any(node.locks for node in nodes), "path locked by nobody"

    @staticmethod
    def _held(lease: Lease) -> Held:
        assert isinstance(lease.held, Held)
        return lease.held
