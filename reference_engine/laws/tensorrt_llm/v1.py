"""TensorRT-LLM V1, the C++ block manager.

    keys = prompt[:L-1] in blocks of t, the last one short
    share every full block that matches; at the first miss take the block with the most equal leading tokens:
        held by somebody, or with blocks below it: its tokens are copied (copy_on_partial_reuse), else not used
        an unused leaf: taken over, and no longer findable
    hit = the least over the attention windows

Stored are: the full blocks of the context when it ends (PR 4028, PR 6683; not those of sliding windows), full blocks
while decoding, and everything, the short last block included, when the request ends.

Source: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, read in versions of 2025 and 2026; not executed.
ASSUMPTION: the context's end stores the full blocks of the prompt without its last token. The code leaves out the
last token of the request's list, which may hold the first generated token by then; only requests that overlap see it.
ASSUMPTION: a request whose context never finished stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reference_engine.laws.base import Expectation, Law, Lease
from reference_engine.laws.memory import Room, Slots
from reference_engine.laws.tensorrt_llm.published import Published, scope_of
from reference_engine.laws.tensorrt_llm.v1_tree import Block, Walk, WindowTree
from vocabulary.engine import TokenRequest
from vocabulary.groups import LayerGroup
from vocabulary.ledger import Cause, Ledger


class TrtllmV1(Law):
    """One search tree per window size over blocks of one size."""

    def __init__(
        self,
        law_id: str,
        tokens_per_block: int,
        groups: Sequence[LayerGroup],
        *,
        enable_block_reuse: bool = True,
        enable_partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        cyclic_windows: bool = False,
    ) -> None:
        """`groups`: attention only; equal ones share a tree."""
        super().__init__()
        self.rooms, self._texts = tuple(Room(group, None) for group in groups), tuple(map(str, groups))
        self.id, self.granule, self.pool_tokens = law_id, tokens_per_block, None
        self.windows = {str(group): group.window for group in groups}
        self.enabled, self.cyclic = enable_block_reuse, cyclic_windows
        self.least_window = min((w for w in self.windows.values() if w is not None), default=None)
        self.trees = {
            text: WindowTree(tokens_per_block, partial=enable_partial_reuse, copy=copy_on_partial_reuse)
            for text in self.windows
        }
        self.published = Published()

    def admit(self, request: TokenRequest) -> Lease:
        """Search every window's tree, then hold what was found and new blocks for the rest of the prompt."""
        self.published.admitted(self.id, request)
        ids = request.array
        limit = request.prompt_len - 1 if self.enabled else 0
        walks = {text: tree.walk(scope_of(request), ids[:limit]) for text, tree in self.trees.items()}
        lease = Lease(request, self._expectation(request, walks))
        blocks = -(-request.prompt_len // self.granule)
        held = {text: self.trees[text].take(walk, blocks) for text, walk in walks.items()}
        for number, text in enumerate(self._texts):
            self._copy_part(number, walks[text], held[text])
        lease.held = held
        self.published.open(lease)
        return lease

    def computed(self, lease: Lease, end: int) -> None:
        """Store the context's full blocks when it ends, then those that decoding fills."""
        lease.computed_len = max(lease.computed_len, end)
        prompt_len = lease.request.prompt_len
        if lease.computed_len >= prompt_len:
            usable = lease.computed_len if lease.computed_len > prompt_len else prompt_len - 1
            full = usable // self.granule * self.granule
            self._store(lease, full, [text for text, window in self.windows.items() if window is None])

    def append(self, lease: Lease, token_id: int) -> None:
        """Take another block when the last one is full."""
        for text, held in self._held(lease).items():
            if lease.length == len(held) * self.granule:
                held.append(self.trees[text].more())
        lease.push(token_id)

    def release(self, lease: Lease) -> None:
        """Store everything that has KV, in every window, and let go."""
        if lease.computed_len >= lease.request.prompt_len:
            self._store(lease, lease.computed_len, list(self.windows))
        for text, held in self._held(lease).items():
            self.trees[text].drop(held)
        self.published.close(lease)

    def reset(self) -> None:
        """Forget everything."""
        self.published.clear()
        for tree in self.trees.values():
            tree.clear()

    def check_integrity(self) -> None:
        """Every tree's blocks are free, stored or held by the leases that are open."""
        for text, tree in self.trees.items():
            tree.check_integrity(block for lease in self.published.live for block in self._held(lease)[text])

    def slots(self, lease: Lease, group: int, start: int, end: int) -> Slots:
        """As `Law.slots`. Windows that found less than others did are computed again into the blocks others found."""
        first, position = start // self.granule, np.arange(start, end)
        blocks = self._held(lease)[self._texts[group]][first : -(-end // self.granule)]
        numbers = np.array([block.number for block in blocks], np.int64)
        places: Slots = numbers[position // self.granule - first] * self.granule + position % self.granule
        return places

    def _copy_part(self, group: int, walk: Walk, held: Sequence[Block]) -> None:
        """Copy what matched of a block found in part, unless the block itself was taken over."""
        whole = len(walk.path)
        if walk.partial is not None and held[whole] is not walk.partial:
            tokens = np.arange(walk.matched - whole * self.granule)
            source, target = (block.number * self.granule + tokens for block in (walk.partial, held[whole]))
            self.moves.add(group, source, target)

    def findable_blocks(self, request: TokenRequest, text: str) -> tuple[Block, ...]:
        """Leading full blocks of the whole prompt that one window's tree holds; holds none of them."""
        return self.trees[text].walk(scope_of(request), request.array).path

    def _store(self, lease: Lease, end: int, texts: list[str]) -> None:
        outgrown = self.cyclic and self.least_window is not None and lease.length > self.least_window
        if not self.enabled or outgrown:
            return
        for text in texts:
            self.trees[text].store(scope_of(lease.request), lease.ids[:end], self._held(lease)[text])
        if texts:
            self.published.findable(lease.ids[:end], scope_of(lease.request))

    def _expectation(self, request: TokenRequest, walks: Mapping[str, Walk]) -> Expectation:
        hit = min(walk.matched for walk in walks.values())
        ceilings = self.published.ceilings(request, Cause.WINDOW if self.cyclic else Cause.EVICTED)
        if self.enabled:
            most = max(walk.matched for walk in walks.values())
            running = ceilings[-1][0] is Cause.IN_FLIGHT or bool(self.published.live)
            ceilings += [
                (Cause.EVICTED, max(walk.reachable for walk in walks.values())),  # taken over by another request
                (Cause.GRANULE, most),
                (Cause.IN_FLIGHT if running else Cause.WINDOW, hit),
            ]
        else:
            ceilings[-1] = (Cause.DISABLED, 0)
        return Expectation(
            hit_len=hit,
            position_start=hit,
            ledger=Ledger.waterfall(request.prompt_len, ceilings),
            per_group={text: walk.matched for text, walk in walks.items()},
            junction=hit,
        )

    @staticmethod
    def _held(lease: Lease) -> dict[str, list[Block]]:
        assert isinstance(lease.held, dict)
        return lease.held
