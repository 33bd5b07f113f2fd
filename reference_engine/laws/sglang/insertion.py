"""How SGLang puts what a request computed into the tree.

Source: SGLang 0.5.23, srt/mem_cache/unified_radix_cache.py (checkpoint_into_tree),
unified_cache/{unified_tree_core,components/swa,components/mamba}.py, executed.
"""

from __future__ import annotations

from reference_engine.laws.parts.chained import Chained
from reference_engine.laws.parts.page_radix import Key, PageRadixTree, RadixNode
from reference_engine.laws.sglang.config import SglangConfig
from reference_engine.laws.sglang.held import Held
from reference_engine.laws.sglang.pools import Pools


class Inserter:
    """Inserts keys with their pages, windows and states."""

    def __init__(self, config: SglangConfig, tree: PageRadixTree, pools: Pools) -> None:
        self.tree, self.pools = tree, pools
        self.page, self.window, self.states_per_path = config.page, config.window, config.states_per_path

    def insert(self, key: Key, end: int, held: Held, state: int | None) -> RadixNode:
        """Insert `key` up to `end` (whole pages) below what the request shares; the tree takes `state` to its end.

        What the tree had already stays the tree's; the request's copies of it are given back. Afterwards
        its own pages up to `end` are the tree's (`Held.hand_over`).
        """
        tree, node = self.tree, held.node
        tree.touch(tree.path(node))
        while (child := tree.child(node, key, end)) is not None:
            tree.touch([child])
            node = tree.passed(child, key, end)
            self._overlap(node, held)
        if node.end < end:
            key = key.copy() if isinstance(key, Chained) else key  # it is a part of a whole batch of requests
            node = tree.add_leaf(node, key, end, held.pages[held.part(node.end, end)])
            self._open_window(node, held)
        if self.window is not None:
            self.use_window(node)
        if state is not None and not (end and self._attach(node, state)):
            self.pools.give_back_state(state)
        return node

    def use_window(self, node: RadixNode) -> None:
        """The window before the end of `node` was used, the nearer the later."""
        assert self.window is not None
        path = self.tree.window_path(node, self.window + self.page)
        self.tree.window_recency.use(*[each for each in path if each.window is not None])

    def _overlap(self, node: RadixNode, held: Held) -> None:
        """The tree has this node, beyond what the request was given: take its window if it lacks one."""
        live = max(node.start, held.window_from)
        if self.window is None or node.window is not None or live >= node.end:
            self._exchange(node, held)
            return
        if live > node.start:
            self._exchange(self.tree.split(node, live), held)
        self._give_window(node, held)

    def _exchange(self, node: RadixNode, held: Held) -> None:
        """Give back the request's copy of a node and read the tree's."""
        self.pools.full.give_back(held.pages[held.part(node.start, node.end)])
        if self.window is not None:
            mine = min(max(node.start, held.window_from), node.end)
            self.pools.window.give_back(held.window_pages[held.part(mine, node.end)])

    def _give_window(self, node: RadixNode, held: Held) -> None:
        """A tombstone gets the request's window, with the request's full pages where no other request reads it."""
        part = held.part(node.start, node.end)
        if node.locks:
            self.pools.full.give_back(held.pages[part])
        else:
            self.pools.full.give_back(node.pages)
            node.pages = held.pages[part]
        self.tree.set_window(node, held.window_pages[part])

    def _open_window(self, leaf: RadixNode, held: Held) -> None:
        """A new leaf keeps the window pages the request still has, the last window in a node of its own."""
        live = max(leaf.start, held.window_from)
        if self.window is None or live >= leaf.end:
            return
        if live > leaf.start:
            self.tree.split(leaf, live)
        tail = leaf.end - -(-self.window // self.page) * self.page
        parts = [self.tree.split(leaf, tail), leaf] if tail > live else [leaf]
        for part in parts:
            self.tree.set_window(part, held.window_pages[held.part(part.start, part.end)])

    def _attach(self, node: RadixNode, state: int) -> bool:
        """Attach a state to a node; False where it has one, which then counts as used."""
        taken = node.state is None
        if taken:
            self.tree.set_state(node, state)
            self._limit_states(node)
        else:
            self.tree.state_recency.use(node)
        self.tree.touch([node])
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
