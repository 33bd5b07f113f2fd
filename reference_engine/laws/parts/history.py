"""Everything computed since the last reset, per namespace: what could still be resident at best.

The longest common prefix with it (`lcp_len`, P) is the ceiling of every rule; a law books what lies
beyond it as `novel` or, where another namespace had it, as `namespace`.
"""

from __future__ import annotations

import numpy as np

from reference_engine.laws.base import Ids
from reference_engine.laws.parts.chained import Chained, ChainedHistory, Tokens

_NO_IDS: Ids = np.empty(0, np.int32)


class _Node:
    __slots__ = ("children", "edge")

    def __init__(self, edge: Ids) -> None:
        self.edge = edge
        self.children: dict[int, _Node] = {}


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix of two token sequences of one form."""
    n = min(len(a), len(b))
    if n == 0:
        return 0
    if isinstance(a, Chained) or isinstance(b, Chained):
        assert isinstance(a, Chained)
        assert isinstance(b, Chained)
        return a.common(b)
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n


class _Tree:
    """Compressed radix tree of token sequences; cost linear in the sequence, whatever is stored."""

    def __init__(self) -> None:
        self._root = _Node(_NO_IDS)

    def lcp(self, ids: Ids) -> int:
        node, depth = self._root, 0
        while depth < len(ids) and (child := node.children.get(int(ids[depth]))) is not None:
            common = common_prefix(child.edge, ids[depth:])
            depth += common
            if common < len(child.edge):
                break
            node = child
        return depth

    def add(self, ids: Ids) -> None:
        node, depth = self._root, 0
        while depth < len(ids):
            child = node.children.get(int(ids[depth]))
            if child is None:
                node.children[int(ids[depth])] = _Node(ids[depth:].copy())
                return
            common = common_prefix(child.edge, ids[depth:])
            if common < len(child.edge):
                upper = _Node(child.edge[:common])
                child.edge = child.edge[common:]
                upper.children[int(child.edge[0])] = child
                node.children[int(upper.edge[0])] = upper
                child = upper
            node, depth = child, depth + common


class History:
    """Token sequences computed so far, by namespace."""

    def __init__(self) -> None:
        self._trees: dict[str | None, _Tree] = {}
        self._chained: dict[str | None, ChainedHistory] = {}

    def lcp(self, ids: Tokens, namespace: str | None = None) -> int:
        """Longest common prefix with any sequence of this namespace, in tokens."""
        if isinstance(ids, Chained):
            chained = self._chained.get(namespace)
            return chained.lcp(ids) if chained else 0
        tree = self._trees.get(namespace)
        return tree.lcp(ids) if tree else 0

    def lcp_elsewhere(self, ids: Tokens, namespace: str | None = None) -> int:
        """Longest common prefix with any sequence of the other namespaces."""
        if isinstance(ids, Chained):
            others = [each for name, each in self._chained.items() if name != namespace]
            return max([each.lcp(ids) for each in others]) if others else 0
        return max((tree.lcp(ids) for name, tree in self._trees.items() if name != namespace), default=0)

    def add(self, ids: Tokens, namespace: str | None = None) -> None:
        """Remember that all of `ids` was computed."""
        if isinstance(ids, Chained):
            if namespace not in self._chained:
                self._chained[namespace] = ChainedHistory()
            self._chained[namespace].add(ids)
        else:
            self._trees.setdefault(namespace, _Tree()).add(ids)

    def clear(self) -> None:
        """Forget everything."""
        self._trees.clear()
        self._chained.clear()
