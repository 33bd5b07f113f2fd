"""An index of full blocks, each keyed by its own tokens and everything before them.

vLLM chains hashes: H(parent key, tokens). Here the chain is a trie over the blocks' bytes, which finds
the same blocks without a hash that could collide, and survives a parent's eviction as a chained hash
does: a node lives as long as it or a descendant is cached.
"""

from __future__ import annotations

from reference_engine.laws.base import Ids


class BlockKey:
    """One node of the chain; `pages` are the pool pages that hold this block's KV, oldest first."""

    __slots__ = ("_name", "children", "pages", "parent")

    def __init__(self, parent: BlockKey | None, name: bytes) -> None:
        self.parent, self._name = parent, name
        self.children: dict[bytes, BlockKey] = {}
        self.pages: list[int] = []

    def child(self, name: bytes) -> BlockKey:
        """The key of the block with these bytes behind this one, made if need be."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = BlockKey(self, name)
        return found

    def prune(self) -> None:
        """Drop this node and its ancestors as far up as nothing is cached below them."""
        node = self
        while node.parent is not None and not node.pages and not node.children:
            del node.parent.children[node._name]
            node = node.parent


class ChainedBlockIndex:
    """Find the leading run of cached blocks of a prompt."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.clear()

    def clear(self) -> None:
        """Forget every block."""
        self._roots: dict[str | None, BlockKey] = {}
        self._key_of: dict[int, BlockKey] = {}

    def match(self, ids: Ids, namespace: str | None, limit: int) -> list[int]:
        """Pages of the longest run of cached blocks from position 0 that ends at or below `limit` tokens."""
        key, pages, b = self._roots.get(namespace), [], self.block_size
        for start in range(0, limit - b + 1, b):
            key = key and key.children.get(ids[start : start + b].tobytes())
            if key is None or not key.pages:
                break
            pages.append(key.pages[0])
        return pages

    def root(self, namespace: str | None) -> BlockKey:
        """The empty prefix of a namespace."""
        return self._roots.setdefault(namespace, BlockKey(None, b""))

    def key_of(self, page: int) -> BlockKey:
        """The key under which a page is cached."""
        return self._key_of[page]

    def publish(self, parent: BlockKey, ids: Ids, page: int) -> BlockKey:
        """Cache `page` as the block `ids` (one full block) behind `parent`; returns its key.

        A block may be cached twice: a prompt of exactly n blocks recomputes its last one (the cap).
        """
        key = parent.child(ids.tobytes())
        key.pages.append(page)
        self._key_of[page] = key
        return key

    def evict(self, page: int) -> None:
        """The page now holds something else."""
        key = self._key_of.pop(page)
        key.pages.remove(page)
        key.prune()

    def cached_pages(self) -> set[int]:
        """All pages that can be found."""
        return set(self._key_of)
