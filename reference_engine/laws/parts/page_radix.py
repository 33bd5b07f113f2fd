"""A radix tree whose edges are whole pages: the prefix cache of SGLang for full attention.

Source: SGLang 0.5.23, srt/mem_cache/{radix_cache,unified_radix_cache}.py, executed with both tree cores.
A lookup walks edges page by page, splits the last one where it stops matching, and refreshes the
access time of everything on the way. A locked node is on the path of a running request. Eviction
removes whole unlocked leaves, least recently used first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import numpy as np

from reference_engine.laws.base import Ids, PoolExhausted, Slots
from reference_engine.laws.parts.history import common_prefix


class RadixNode:
    """An edge of whole pages and what hangs below it."""

    __slots__ = ("children", "ids", "last_access", "locks", "pages", "parent")

    def __init__(self, parent: RadixNode | None, ids: Ids, pages: Slots) -> None:
        self.parent, self.ids, self.pages = parent, ids, pages
        self.children: dict[bytes, RadixNode] = {}
        self.locks = 0
        self.last_access = 0


class PageRadixTree:
    """Token sequences cut to whole pages, with the pool page of each."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._roots: dict[str | None, RadixNode] = {}
        self._clock = 0

    def match(self, ids: Ids, namespace: str | None) -> tuple[RadixNode, Slots]:
        """Deepest node on the path of `ids` (its page floor) and the pages `[0, depth)` of that path.

        Splits a partly matching edge, so the node ends exactly where the match does.
        """
        self._clock += 1
        node = self._root(namespace)
        node.last_access = self._clock
        parts: list[Slots] = []
        position, end = 0, len(ids) // self.page_size * self.page_size
        while position < end:
            child = node.children.get(self._name(ids, position))
            if child is None:
                break
            common = common_prefix(child.ids, ids[position:end]) // self.page_size * self.page_size
            if common < len(child.ids):
                child = self._split(child, common)
            child.last_access = self._clock
            parts.append(child.pages)
            node, position = child, position + common
        return node, np.concatenate(parts) if parts else np.empty(0, np.int64)

    def insert(self, ids: Ids, pages: Slots, namespace: str | None) -> tuple[RadixNode, Slots, Slots]:
        """Store `ids` (whole pages) held in `pages`.

        Returns the node at its end, the pages of the tree's path, and the caller's pages that the
        tree did not take because it had those tokens already.
        """
        node, known = self.match(ids, namespace)
        spare = pages[: len(known)][pages[: len(known)] != known]
        new = pages[len(known) :]
        if len(new):
            depth = len(known) * self.page_size
            leaf = RadixNode(node, ids[depth:].copy(), new.copy())
            leaf.last_access = self._clock
            node.children[self._name(leaf.ids, 0)] = leaf
            node = leaf
        return node, np.concatenate([known, new]), spare

    def lock(self, node: RadixNode) -> None:
        """Protect a node and its ancestors from eviction."""
        for each in _ancestry(node):
            each.locks += 1

    def unlock(self, node: RadixNode) -> None:
        """Undo one `lock`."""
        for each in _ancestry(node):
            each.locks -= 1

    def evict(self, count: int) -> Slots:
        """Remove least recently used unlocked leaves until `count` pages came free or none is left."""
        leaves = [(n.last_access, id(n), n) for n in self._nodes() if self._evictable(n)]
        heapq.heapify(leaves)
        freed: list[Slots] = []
        total = 0
        while total < count and leaves:
            _, _, leaf = heapq.heappop(leaves)
            freed.append(leaf.pages)
            total += len(leaf.pages)
            parent = leaf.parent
            assert parent is not None
            del parent.children[self._name(leaf.ids, 0)]
            if self._evictable(parent):
                heapq.heappush(leaves, (parent.last_access, id(parent), parent))
        return np.concatenate(freed) if freed else np.empty(0, np.int64)

    def pages(self) -> Slots:
        """All pages the tree holds."""
        parts = [n.pages for n in self._nodes()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def locked(self) -> bool:
        """Whether any request still protects a path."""
        return any(n.locks for n in self._nodes())

    def _root(self, namespace: str | None) -> RadixNode:
        if namespace not in self._roots:
            self._roots[namespace] = RadixNode(None, np.empty(0, np.int32), np.empty(0, np.int64))
        return self._roots[namespace]

    def _name(self, ids: Ids, position: int) -> bytes:
        """How a child is found: the bytes of its first page."""
        return ids[position : position + self.page_size].tobytes()

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cut an edge at `at` tokens; the new upper node keeps the parent's name and the lower one's locks."""
        upper = RadixNode(node.parent, node.ids[:at], node.pages[: at // self.page_size])
        upper.locks, upper.last_access = node.locks, node.last_access
        assert node.parent is not None
        node.parent.children[self._name(node.ids, 0)] = upper
        node.parent, node.ids, node.pages = upper, node.ids[at:], node.pages[at // self.page_size :]
        upper.children[self._name(node.ids, 0)] = node
        return upper

    def _evictable(self, node: RadixNode) -> bool:
        return node.parent is not None and not node.children and not node.locks

    def _nodes(self) -> Iterator[RadixNode]:
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node


class FreePages:
    """Pages nobody owns; `num_pages=None` hands out new numbers for ever (prediction only)."""

    def __init__(self, num_pages: int | None) -> None:
        self.num_pages = num_pages
        self.clear()

    def clear(self) -> None:
        """All pages free."""
        self._next = 0
        self._free: list[int] = []

    def lacking(self, count: int) -> int:
        """How many pages are missing to hand out `count`."""
        if self.num_pages is None:
            return 0
        return max(0, count - len(self._free) - (self.num_pages - self._next))

    def take(self, count: int) -> Slots:
        """Hand out pages; PoolExhausted, and no effect, when there are too few."""
        if self.lacking(count):
            raise PoolExhausted(f"{count} pages wanted, {self.lacking(count)} missing")
        fresh = count if self.num_pages is None else min(count, self.num_pages - self._next)
        pages = list(range(self._next, self._next + fresh)) + [self._free.pop() for _ in range(count - fresh)]
        self._next += fresh
        return np.asarray(pages, np.int64)

    def give_back(self, pages: Iterable[int]) -> None:
        """Pages are free again."""
        if self.num_pages is not None:
            self._free.extend(int(page) for page in pages)

    def check_integrity(self, owned: Slots) -> None:
        """Every number handed out so far is free or in `owned`, exactly once."""
        assert len(np.unique(owned)) == len(owned), "page owned twice"
        if self.num_pages is not None:
            assert len(set(self._free)) == len(self._free), "page freed twice"
            together = np.sort(np.concatenate([owned, np.asarray(self._free, np.int64)]))
            assert np.array_equal(together, np.arange(self._next)), "pages neither free nor owned, or both"


def _ancestry(node: RadixNode) -> Iterator[RadixNode]:
    each: RadixNode | None = node
    while each is not None:
        yield each
        each = each.parent
