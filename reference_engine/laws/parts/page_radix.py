"""A radix tree whose edges are whole pages: the prefix cache of SGLang.

Source: SGLang 0.5.23, srt/mem_cache/{radix_cache,unified_radix_cache}.py and unified_cache/, executed.

A lookup walks edges page by page and splits the last one where it stops matching. A node always holds the pages of
its edge in the full-attention pool. It may also hold pages of the sliding-window pool (`window`; none is a tombstone:
the node stays on the path) and one recurrent state, valid at its end. A split leaves the state on the lower part.

A locked node is on the path of a running request. Eviction removes whole unlocked leaves, least recently used first;
window pages and states of inner nodes can go alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_engine.laws.base import Slots
from reference_engine.laws.parts.chained import Chained
from reference_engine.laws.parts.recency import Recency

Key = npt.NDArray[Any] | Chained
"""One number per token (the token, or the token and its successor in one), or the same by blocks."""
NO_PAGES: Slots = np.empty(0, np.int64)


class RadixNode:
    """An edge of whole pages and what hangs below it."""

    __slots__ = (
        "children",
        "end",
        "key",
        "last_access",
        "locks",
        "name",
        "pages",
        "parent",
        "queued",
        "start",
        "state",
        "state_locks",
        "window",
        "window_edge",
        "window_locks",
    )

    def __init__(
        self, parent: RadixNode | None, key: Key, start: int, end: int, pages: Slots, name: object = None
    ) -> None:
        self.parent, self.pages = parent, pages
        self.key, self.start, self.end = key, start, end
        """The edge is `[start, end)` of the key, which begins with the whole path."""
        self.name = name
        """How the parent finds it: its first page."""
        self.children: dict[Any, RadixNode] = {}
        self.window: Slots | None = None
        """Pages in the sliding-window pool; None: a tombstone."""
        self.state: int | None = None
        """Slot of the recurrent state at the node's end."""
        self.locks = self.window_locks = self.state_locks = 0
        self.window_edge: object | None = None
        """Mark of the locks whose window starts in this node."""
        self.last_access: int
        """By the tree's clock, from when it joins the tree."""
        self.queued = False


@dataclass(frozen=True, slots=True)
class Lock:
    """What one request protects: the path of a node, the window before it and its state."""

    node: RadixNode
    window_edge: object | None
    """Mark of the node where the window starts; None: at the root."""


class PageRadixTree:
    """Keys cut to whole pages, with what the pools hold of each.

    `window` is the sliding window in tokens whose locks are kept; None where no group has one.
    """

    def __init__(self, page_size: int, *, window: int | None = None) -> None:
        self.page_size, self.window_len = page_size, window
        self.window_recency: Recency[RadixNode] = Recency()
        self.state_recency: Recency[RadixNode] = Recency()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._roots: dict[str | None, RadixNode] = {}
        self._clock = 0
        self._queue: list[tuple[int, int, RadixNode]] = []
        self.window_recency.clear()
        self.state_recency.clear()
        self.evictable_pages = 0
        """Full-attention pages of nodes on no running request's path."""
        self.evictable_window_pages = 0

    # Walking

    def match(self, key: Key, length: int, namespace: str | None) -> list[RadixNode]:
        """The path of most whole pages of the first `length` of a key, from the root on; its last node ends there.

        A partly matching edge is split. Refreshes nothing.
        """
        node = self.root(namespace)
        path, end = [node], length // self.page_size * self.page_size
        while node.end < end and (child := node.children.get(self._name(key, node.end))) is not None:
            node = self.passed(child, key, end)
            path.append(node)
        return path

    def path(self, node: RadixNode) -> list[RadixNode]:
        """From the root to a node."""
        path = [node]
        while node.parent is not None:
            node = node.parent
            path.append(node)
        return path[::-1]

    def refresh(self, node: RadixNode) -> None:
        """A lookup ended at `node`: it and its ancestors were used; among them the deeper goes first anyhow."""
        time, each = self._tick(), node
        while each.parent is not None:
            each.last_access = time
            each = each.parent

    def touch(self, nodes: Sequence[RadixNode]) -> None:
        """An insertion passed these nodes, in this order."""
        for node in nodes:
            node.last_access = self._tick()

    def child(self, node: RadixNode, key: Key, end: int) -> RadixNode | None:
        """The edge below `node` that begins with the next page of `key`, which has whole pages up to `end`."""
        return node.children.get(self._name(key, node.end)) if node.end < end else None

    def passed(self, node: RadixNode, key: Key, end: int) -> RadixNode:
        """The node as far as `key` up to `end` goes along its edge, in whole pages; what is left is cut off below."""
        start, stop = node.start, min(node.end, end)
        if isinstance(key, Chained):
            assert isinstance(node.key, Chained)
            stop = key.agrees(node.key, start, stop)
        else:
            assert not isinstance(node.key, Chained)
            differs = node.key[start:stop] != key[start:stop]
            first = int(differs.argmax())
            stop = start + first if differs[first] else stop
        stop = stop // self.page_size * self.page_size
        return node if stop == node.end else self.split(node, stop)

    def root(self, namespace: str | None) -> RadixNode:
        """The empty prefix of a namespace."""
        if namespace not in self._roots:
            self._roots[namespace] = RadixNode(None, np.empty(0, np.int32), 0, 0, NO_PAGES)
        return self._roots[namespace]

    # Growing

    def add_leaf(self, parent: RadixNode, key: Key, end: int, pages: Slots) -> RadixNode:
        """A new edge below `parent`, as `key` goes on to `end`."""
        name = self._name(key, parent.end)
        leaf = parent.children[name] = RadixNode(parent, key, parent.end, end, pages, name)
        self.touch([leaf])
        self.evictable_pages += len(pages)
        self._offer(leaf)
        return leaf

    def split(self, node: RadixNode, at: int) -> RadixNode:
        """Cut an edge at position `at`; the new upper node is returned, the lower one keeps its identity."""
        above, pages = node.parent, (at - node.start) // self.page_size
        assert above is not None
        upper = RadixNode(above, node.key, node.start, at, node.pages[:pages].copy(), node.name)
        upper.locks, upper.window_locks = node.locks, node.window_locks
        upper.window_edge, node.window_edge = node.window_edge, None
        above.children[node.name] = upper
        node.parent, node.start, node.name, node.pages = upper, at, self._name(node.key, at), node.pages[pages:]
        upper.children[node.name] = node
        if node.window is not None:
            upper.window, node.window = node.window[:pages].copy(), node.window[pages:]
            self.window_recency.add_behind(node, upper)
        self.touch([upper, node])
        return upper

    def set_window(self, node: RadixNode, pages: Slots) -> None:
        """A tombstone gets window pages."""
        assert node.window is None, "node has its window"
        node.window = pages
        self.window_recency.add(node)
        if not node.window_locks:
            self.evictable_window_pages += len(pages)

    def set_state(self, node: RadixNode, slot: int) -> None:
        """A node gets the state at its end."""
        assert node.state is None, "node has a state"
        node.state = slot
        self.state_recency.add(node)

    def window_path(self, node: RadixNode, tokens: int) -> list[RadixNode]:
        """`node` and its ancestors, deepest first, until they cover `tokens`."""
        path, top = list[RadixNode](), node.end - tokens
        while node.parent is not None and node.end > top:
            path.append(node)
            node = node.parent
        return path

    # Locking

    def lock(self, node: RadixNode) -> Lock:
        """Protect a node and its ancestors from eviction, the window that ends there, and its state."""
        each = node
        while each.parent is not None:
            if not each.locks:
                self.evictable_pages -= len(each.pages)
            each.locks += 1
            each = each.parent
        if node.parent is None:
            return Lock(node, None)
        node.state_locks += 1
        return Lock(node, self._lock_window(node))

    def unlock(self, lock: Lock) -> None:
        """Undo one `lock`."""
        node = lock.node
        if node.parent is not None:
            node.state_locks -= 1
            self._unlock_window(lock)
        each = node
        while each.parent is not None:
            each.locks -= 1
            if not each.locks:
                self.evictable_pages += len(each.pages)
            each = each.parent
        self._offer(node)

    def _lock_window(self, node: RadixNode) -> object | None:
        if self.window_len is None:
            return None
        path = self.window_path(node, self.window_len)
        for each in path:
            if not each.window_locks and each.window is not None:
                self.evictable_window_pages -= len(each.window)
            each.window_locks += 1
        if node.end - path[-1].start < self.window_len:
            return None
        if path[-1].window_edge is None:
            path[-1].window_edge = object()
        return path[-1].window_edge

    def _unlock_window(self, lock: Lock) -> None:
        if self.window_len is None:
            return
        each = lock.node
        while each.parent is not None:
            each.window_locks -= 1
            if not each.window_locks and each.window is not None:
                self.evictable_window_pages += len(each.window)
            if lock.window_edge is not None and each.window_edge == lock.window_edge:
                break
            each = each.parent

    # Evicting

    def oldest_leaf(self) -> RadixNode | None:
        """The least recently used leaf that nobody protects; has to be removed."""
        while self._queue:
            time, _, node = heapq.heappop(self._queue)
            node.queued = False
            if node.last_access == time and self.is_free_leaf(node):
                return node
            self._offer(node)
        return None

    def is_free_leaf(self, node: RadixNode) -> bool:
        """Whether eviction may remove the whole node."""
        return not node.children and not node.locks and node.parent is not None

    def remove(self, leaf: RadixNode) -> None:
        """A free leaf leaves the tree; its pages and state are the caller's."""
        parent = leaf.parent
        assert parent is not None
        self.evictable_pages -= len(leaf.pages)
        if leaf.window is not None:
            self.drop_window(leaf)
        if leaf.state is not None:
            self.drop_state(leaf)
        del parent.children[leaf.name]
        leaf.parent = None
        self._offer(parent)

    def drop_window(self, node: RadixNode) -> Slots:
        """The node becomes a tombstone; returns its window pages."""
        pages = node.window
        assert pages is not None
        assert not node.window_locks, "window of a running request"
        self.evictable_window_pages -= len(pages)
        self.window_recency.remove(node)
        node.window = None
        return pages

    def drop_state(self, node: RadixNode) -> int:
        """The node loses its state; returns the slot."""
        slot = node.state
        assert slot is not None
        self.state_recency.remove(node)
        node.state = None
        return slot

    # Books

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the roots, in no particular order."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def check_integrity(self) -> None:
        """AssertionError when locks, counts or recency lists contradict the nodes."""
        nodes = list(self.nodes())
        assert self.evictable_pages == sum(len(n.pages) for n in nodes if not n.locks)
        windows = [n for n in nodes if n.window is not None]
        assert len(windows) == len(self.window_recency)
        assert all(n in self.window_recency for n in windows)
        free = sum(len(n.window) for n in windows if n.window is not None and not n.window_locks)
        assert self.evictable_window_pages == free
        states = [n for n in nodes if n.state is not None]
        assert len(states) == len(self.state_recency)
        assert all(n in self.state_recency for n in states)
        for node in nodes:
            assert node.end - node.start == len(node.pages) * self.page_size, "edge and pages differ"
            assert node.locks >= max(node.window_locks, node.state_locks), "a lock protects no path"
            assert node.queued or not self.is_free_leaf(node), "a free leaf is not offered for eviction"
            above = node.parent
            assert above is not None
            assert above.end == node.start and above.children[node.name] is node, "an edge hangs in the wrong place"
            assert above.parent is None or above.locks >= node.locks, "a locked node hangs below an unlocked one"

    def _name(self, key: Key, position: int) -> Any:
        """How a child is found: its first page."""
        if isinstance(key, Chained):
            return key.name(position, self.page_size)
        if self.page_size == 1:
            return key.item(position)
        return key[position : position + self.page_size].tobytes()

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _offer(self, node: RadixNode) -> None:
        if not node.queued and self.is_free_leaf(node):
            node.queued = True
            heapq.heappush(self._queue, (node.last_access, self._tick(), node))
