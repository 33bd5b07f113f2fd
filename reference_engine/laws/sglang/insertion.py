"""How SGLang puts what a request computed into the tree.

Source: SGLang 0.5.23, srt/mem_cache/unified_radix_cache.py (checkpoint_into_tree),
unified_cache/{unified_tree_core,components/swa,components/mamba}.py, executed.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.laws.parts.page_radix import Key, PageRadixTree, RadixNode
from reference_engine.laws.sglang.config import SglangConfig
from reference_engine.laws.sglang.held import Held
from reference_engine.laws.sglang.pools import Pools


@dataclass(frozen=True, slots=True)
class Inserted:
    """Where an insertion ended."""

    node: RadixNode
    state_taken: bool
    """Whether the tree took the request's state."""


class Inserter:
    """Inserts keys with their pages, windows and states."""

    def __init__(self, config: SglangConfig, tree: PageRadixTree, pools: Pools) -> None:
        self.tree, self.pools = tree, pools
        self.page, self.window, self.states_per_path = config.page, config.window, config.states_per_path

    def insert(self, key: Key, namespace: str | None, held: Held, state: int | None) -> Inserted:
        """Insert `key` (whole pages), held in `held.pages`, and attach `state` to its end.

        What the tree had already stays the tree's; the request's copies of it are given back. Afterwards
        `held.pages` up to the end are the tree's.
        """
        tree = self.tree
        node = tree.root(namespace)
        tree.touch(node)
        position, end = 0, len(key)
        while (child := tree.child(node, key, position)) is not None:
            tree.touch(child)
            # The tokens of the tree path that the request was given are known to be equal.
            known = position + len(child.key) <= held.shared
            common = len(child.key) if known else tree.common(child.key, key, position)
            node = child if common == len(child.key) else tree.split(child, common)
            if not known:
                self._overlap(node, position, held)
            position += common
        if position < end:
            first, last = position // self.page, end // self.page
            node = tree.add_leaf(node, key[position:], held.pages[first:last].copy())
            self._open_window(node, position, held)
        if self.window is not None:
            self.use_window(node)
        taken = state is not None and end > 0 and self._attach(node, state)
        held.shared = max(held.shared, end)
        return Inserted(node, taken)

    def end_a_node_at(self, key: Key, namespace: str | None) -> None:
        """Walk along `key`, all of which is in the tree, and make a node end there."""
        tree = self.tree
        node = tree.root(namespace)
        tree.touch(node)
        position = 0
        while (child := tree.child(node, key, position)) is not None:
            tree.touch(child)
            common = tree.common(child.key, key, position)
            node = child if common == len(child.key) else tree.split(child, common)
            position += common

    def use_window(self, node: RadixNode) -> None:
        """The window before the end of `node` was used, the nearer the later."""
        assert self.window is not None
        path = self.tree.window_path(node, self.window + self.page)
        self.tree.window_recency.use(*[each for each in path if each.window is not None])

    def _overlap(self, node: RadixNode, start: int, held: Held) -> None:
        """The tree has this node, beyond what the request was given: take its window if it lacks one."""
        end = start + len(node.key)
        if self.window is not None and node.window is None:
            live = max(start, held.window_from)
            if live < end:
                if live > start:
                    self._exchange(self.tree.split(node, live - start), start, held)
                self._give_window(node, live, held)
                return
        self._exchange(node, start, held)

    def _exchange(self, node: RadixNode, start: int, held: Held) -> None:
        """Give back the request's copy of a node and read the tree's."""
        first, last = start // self.page, (start + len(node.key)) // self.page
        self.pools.full.give_back(held.pages[first:last])
        held.pages[first:last] = node.pages
        if self.window is None:
            return
        mine = min(max(first, held.window_from // self.page), last)
        self.pools.window.give_back(held.window_pages[mine:last])
        if node.window is not None:
            held.window_pages[first:last] = node.window

    def _give_window(self, node: RadixNode, start: int, held: Held) -> None:
        """A tombstone gets the request's window, with the request's full pages where no other request reads it."""
        first, last = start // self.page, (start + len(node.key)) // self.page
        if node.locks:
            self.pools.full.give_back(held.pages[first:last])
            held.pages[first:last] = node.pages
        else:
            self.pools.full.give_back(node.pages)
            node.pages = held.pages[first:last].copy()
        self.tree.set_window(node, held.window_pages[first:last].copy())

    def _open_window(self, leaf: RadixNode, start: int, held: Held) -> None:
        """A new leaf keeps the window pages the request still has, the last window in a node of its own."""
        if self.window is None:
            return
        end = start + len(leaf.key)
        live = max(start, held.window_from)
        if live >= end:
            return
        if live > start:
            self.tree.split(leaf, live - start)
        tail = -(-self.window // self.page) * self.page
        if end - live > tail:
            older = self.tree.split(leaf, end - live - tail)
            self.tree.set_window(older, held.window_pages[live // self.page : (end - tail) // self.page].copy())
            live = end - tail
        self.tree.set_window(leaf, held.window_pages[live // self.page : end // self.page].copy())

    def _attach(self, node: RadixNode, state: int) -> bool:
        """Attach a state to a node; False where it has one, which then counts as used."""
        taken = node.state is None
        if taken:
            self.tree.set_state(node, state)
            self._limit_states(node)
        else:
            self.tree.state_recency.use(node)
        self.tree.touch(node)
        return taken

    def _limit_states(self, tail: RadixNode) -> None:
        """Drop the shallowest states of a path beyond the limit; ends of paths and forks are spared."""
        if self.states_per_path is None:
            return
        holders = []
        node: RadixNode | None = tail
        while node is not None:
            if node.state is not None:
                holders.append(node)
            node = node.parent
        excess = len(holders) - self.states_per_path
        for holder in reversed(holders):
            if excess <= 0 or holder is tail:
                return
            if not holder.state_locks and len(holder.children) == 1:
                self.pools.drop_state(holder)
                excess -= 1
