"""One attention window's search tree of the V1 block manager, and the blocks that requests hold.

Source: TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp (file versions b35ac1b6 and 51768545, 2025 to
2026), read, not executed. A block is in the tree or not; only a block in the tree can be found, and a block may be
in it while requests hold it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reference_engine.laws.base import Ids
from reference_engine.laws.parts.history import common_prefix
from vocabulary.errors import LawDoesNotCover

_NO_IDS: Ids = np.empty(0, np.int32)


class Block:
    """A block of one window; `ids` are the tokens it is stored under, empty while it is private."""

    __slots__ = ("children", "ids", "number", "parent", "references")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ids = _NO_IDS
        self.parent: Block | None = None
        self.children: dict[bytes, Block] = {}
        self.references = 0

    @property
    def unused_leaf(self) -> bool:
        """Nobody holds it and nothing hangs below it."""
        return not self.references and not self.children


@dataclass(frozen=True, slots=True)
class Walk:
    """The outcome of a search; nothing is held yet."""

    path: tuple[Block, ...]
    """Full blocks that match, in order."""
    partial: Block | None
    """The block whose leading tokens match where `path` ends, if the options let it be used."""
    matched: int
    """Tokens found."""
    reachable: int
    """Tokens the stored blocks hold of this prompt, whatever the options say about parts of blocks."""


class WindowTree:
    """The stored blocks of one window size."""

    def __init__(self, tokens_per_block: int, *, partial: bool, copy: bool) -> None:
        """`partial` and `copy` are `enable_partial_reuse` and `copy_on_partial_reuse`."""
        self._t, self._partial, self._copy = tokens_per_block, partial, copy
        self.clear()

    def clear(self) -> None:
        """Forget every block."""
        self._roots: dict[str | None, Block] = {}
        self._made = 0
        self._free: list[Block] = []

    def walk(self, scope: str | None, ids: Ids) -> Walk:
        """Search `ids` (the prompt without its last token). Changes nothing.

        Raises LawDoesNotCover where several equally good partial blocks differ in what using them would do: the
        engine takes whichever its hash map lists first.
        """
        node, path, t = self._roots.get(scope), list[Block](), self._t
        for start in range(0, len(ids) if node else 0, t):
            assert node is not None
            name = ids[start : start + t]
            child = node.children.get(name.tobytes())
            if child is not None and len(name) == t:
                path.append(child)
                node = child
                continue
            depth = len(path) * t
            if child is not None:  # the same short block: found by its key, so no option forbids it
                return Walk(tuple(path), child, depth + len(name), depth + len(name))
            block, tokens, most = self._best_part(node, name)
            return Walk(tuple(path), block, depth + tokens, depth + most)
        depth = len(path) * t
        return Walk(tuple(path), None, depth, depth)

    def _best_part(self, node: Block, name: Ids) -> tuple[Block | None, int, int]:
        """The child with the most leading tokens of `name`, how many, and how many any child has."""
        parts = [(child, common_prefix(child.ids, name)) for child in node.children.values()]
        most = max((tokens for _, tokens in parts), default=0)
        if not self._partial:
            return None, 0, most
        usable = [(child, tokens) for child, tokens in parts if self._copy or child.unused_leaf]
        best = max((tokens for _, tokens in usable), default=0)
        if not best:
            return None, 0, most
        winners = [child for child, tokens in usable if tokens == best]
        if len(winners) > 1 and any(child.unused_leaf for child in winners):
            raise LawDoesNotCover(
                f"TensorRT-LLM V1: {len(winners)} stored blocks match {best} leading tokens equally, and one taken "
                f"over is found no more; which one depends on the order of a hash map"
            )
        return winners[0], best, most

    def take(self, walk: Walk, blocks: int) -> list[Block]:
        """Hold what was found and new blocks up to `blocks`; at most the last found one is private."""
        held = list(walk.path)
        if walk.partial is not None:
            held.append(walk.partial if walk.partial.unused_leaf else self._new())
            if walk.partial.unused_leaf:
                self._unlink(walk.partial)
        held += [self._new() for _ in range(blocks - len(held))]
        for block in held:
            block.references += 1
        return held

    def more(self) -> Block:
        """One more private block."""
        block = self._new()
        block.references = 1
        return block

    def store(self, scope: str | None, ids: Ids, held: Sequence[Block]) -> None:
        """Make all of `ids` findable: block by block what is stored already, from the first gap on the holder's own."""
        node, matching = self._roots.setdefault(scope, Block(-1)), True
        for index, start in enumerate(range(0, len(ids), self._t)):
            name = ids[start : start + self._t]
            found = node.children.get(name.tobytes()) if matching else None
            if found is None:
                matching, found = False, held[index]
                if found.parent is not None:  # it was stored as a shorter block
                    self._unlink(found)
                found.ids, found.parent = name.copy(), node
                node.children[name.tobytes()] = found
            node = found

    def drop(self, held: Sequence[Block]) -> None:
        """A holder lets go; what is neither held nor stored is free."""
        for block in held:
            block.references -= 1
            if not block.references and block.parent is None:
                self._free.append(block)

    def stored(self) -> Iterator[Block]:
        """Every block in the tree."""
        open_nodes = list(self._roots.values())
        while open_nodes:
            node = open_nodes.pop()
            yield from node.children.values()
            open_nodes.extend(node.children.values())

    def check_integrity(self, held: Iterable[Block]) -> None:
        """References are the holds, stored blocks hang where their keys say, and every other block is free once."""
        holds, stored = Counter(held), list(self.stored())
        assert len({block.number for block in stored}) == len(stored), "block stored twice"
        for block in {*stored, *holds, *self._free}:
            assert block.references == holds[block], f"references of block {block.number}"
        for block in stored:
            parent = block.parent
            assert parent is not None and parent.children[block.ids.tobytes()] is block, "stored under another key"
            assert len(block.ids) == self._t or not block.children, "a short block with blocks below it"
        used = {block.number for block in {*stored, *holds}}
        together = sorted([*used, *(block.number for block in self._free)])
        assert together == list(range(self._made)), "blocks neither free nor in use, or both"

    def _new(self) -> Block:
        if self._free:
            return self._free.pop()
        self._made += 1
        return Block(self._made - 1)

    @staticmethod
    def _unlink(block: Block) -> None:
        assert block.parent is not None
        del block.parent.children[block.ids.tobytes()]
        block.parent, block.ids = None, _NO_IDS
