"""The pools behind SGLang's tree and what it drops to make room.

Source: SGLang 0.5.23, srt/mem_cache/{allocation,unified_radix_cache}.py, unified_cache/components, executed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from reference_engine.laws.base import Slots
from reference_engine.laws.parts.page_radix import NO_PAGES, PageRadixTree, RadixNode
from reference_engine.laws.parts.recency import Recency
from reference_engine.laws.parts.slot_pool import SlotPool
from reference_engine.laws.sglang.config import SglangConfig


class Pools:
    """Full-attention pages, sliding-window pages and state slots of one tree."""

    def __init__(self, config: SglangConfig, tree: PageRadixTree) -> None:
        self.tree, self.page = tree, config.page
        self.full = SlotPool(_pages(config.pool_tokens, config.page))
        self.window = SlotPool(_pages(config.window_pool_tokens, config.page), "sliding-window pages")
        self.states = SlotPool(config.state_slots, "state slots")
        self.has_window = config.window is not None

    def clear(self) -> None:
        """Everything is free."""
        for pool in (self.full, self.window, self.states):
            pool.clear()

    def free_full_tokens(self) -> int | None:
        """Tokens of full attention that are free or could be made free; None: no limit."""
        free = self.full.free
        return None if free is None else (free + self.tree.evictable_pages) * self.page

    def free_window_tokens(self) -> int | None:
        """The same in the sliding-window pool."""
        free = self.window.free
        return None if free is None else (free + self.tree.evictable_window_pages) * self.page

    def take(self, pages: int, *, room_tokens: int) -> tuple[Slots, Slots]:
        """`pages` of full attention and, with a window, as many of it; first makes room for `room_tokens`.

        PoolExhausted when there is not enough; what was dropped stays dropped then, as in SGLang.
        """
        self.make_room(room_tokens)
        full = self.full.take(pages)
        if not self.has_window:
            return full, NO_PAGES
        if self.window.lacking(pages):
            self.full.give_back(full)
        return full, self.window.take(pages)

    def make_room(self, tokens: int) -> None:
        """Drop until `tokens` fit into the full-attention and the sliding-window pool, or nothing can go."""
        pages = -(-tokens // self.page)
        # Known first: dropping a leaf for the one pool helps the other.
        window_lacks = self.has_window and self.window.lacking(pages)
        while self.full.lacking(pages) and (leaf := self.tree.oldest_leaf()) is not None:
            self.drop_leaf(leaf)
        if window_lacks:
            self._drop_from(self.tree.window_recency, self.window, pages)

    def take_states(self, count: int) -> list[int]:
        """State slots, dropping the least recently used states when there are too few."""
        if self.states.lacking(count):
            self._drop_from(self.tree.state_recency, self.states, count)
        return [int(slot) for slot in self.states.take(count)]

    def give_back_state(self, slot: int) -> None:
        """A state slot is free again."""
        self.states.give_back(np.array([slot], np.int64))

    def drop_leaf(self, leaf: RadixNode) -> None:
        """A whole leaf goes."""
        window, state = leaf.window, leaf.state
        self.tree.remove(leaf)
        self.full.give_back(leaf.pages)
        if window is not None:
            self.window.give_back(window)
        if state is not None:
            self.give_back_state(state)

    def drop_state(self, node: RadixNode) -> None:
        """A node stays without its state."""
        self.give_back_state(self.tree.drop_state(node))

    def _drop_from(self, recency: Recency[RadixNode], pool: SlotPool, count: int) -> None:
        """Least recently used first: a free leaf goes as a whole, an inner node loses what is wanted."""
        for node in self._unlocked(recency):
            if self.tree.is_free_leaf(node):
                self.drop_leaf(node)
            elif recency is self.tree.window_recency:
                self.window.give_back(self.tree.drop_window(node))
            else:
                self.drop_state(node)
            if not pool.lacking(count):
                return

    def _unlocked(self, recency: Recency[RadixNode]) -> Iterator[RadixNode]:
        """Nodes oldest first that no running request protects; each has to leave before the next is asked for."""
        window = recency is self.tree.window_recency
        while True:
            node = recency.oldest()
            while node is not None and (node.window_locks if window else node.state_locks):
                node = recency.newer_than(node)
            if node is None:
                return
            yield node


def _pages(tokens: int | None, page: int) -> int | None:
    return None if tokens is None else tokens // page
