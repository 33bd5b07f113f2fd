"""The radix tree of TensorRT-LLM's second KV cache manager: blocks of tokens with one page per life cycle.

Source: tensorrt_llm/runtime/kv_cache_manager_v2/_block_radix_tree.py and _life_cycle_registry.py, 2026 (1.3/1.4
line; the C++ twin follows them), read, not executed. A page records how many tokens of its block it covers; a
recurrent page records the one position its state is valid at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reference_engine.laws.base import Ids
from reference_engine.laws.parts.counted_blocks import CountedBlocks
from reference_engine.laws.parts.history import common_prefix

PARTIAL_MATCH_FANOUT = 32
"""A node with this many children or more is not searched for parts of blocks."""


@dataclass(frozen=True, slots=True)
class AttentionCycle:
    """Pages of one kind of attention."""

    window: int | None
    """None: full attention."""
    sink_blocks: int
    """Leading blocks that a window keeps."""

    def needed(self, tokens: int, t: int) -> Iterator[int]:
        """Blocks that attention reads once `tokens` tokens are history.

        The window includes the token that is about to be computed, at position `tokens`: the deliberate `+ 1`.
        """
        blocks = -(-tokens // t)
        sink = min(blocks, self.sink_blocks)
        tail = sink if self.window is None else max(sink, (tokens + 1 - self.window) // t)
        yield from range(sink)
        yield from range(tail, blocks)


@dataclass(frozen=True, slots=True)
class Page:
    """Memory of one block in one life cycle, as it was committed."""

    number: int
    tokens: int
    """Attention: leading tokens of the block that have KV. Recurrent: tokens into the block after which it holds."""


class TreeBlock:
    """Up to `tokens_per_block` tokens behind their parent, and a page per life cycle where there is one."""

    __slots__ = ("children", "ids", "pages", "parent", "state")

    def __init__(self, parent: TreeBlock | None, ids: Ids, cycles: int) -> None:
        self.parent, self.ids = parent, ids
        self.children: dict[bytes, TreeBlock] = {}
        self.pages: list[Page | None] = [None] * cycles
        self.state: Page | None = None
        """The latest recurrent state kept inside the block; there is never more than one."""

    def covered(self, cycle: int) -> int:
        """Leading tokens that have KV in one cycle."""
        page = self.pages[cycle]
        return 0 if page is None else page.tokens


@dataclass(frozen=True, slots=True)
class Match:
    """Blocks on the path of a prompt and the tokens matched of each; all but the last are whole."""

    blocks: tuple[TreeBlock, ...]
    tokens: int


class RadixTree:
    """Committed blocks by scope; `cycles` are the attention life cycles, in the order of their pages."""

    def __init__(self, tokens_per_block: int, cycles: Sequence[AttentionCycle]) -> None:
        self._t, self.cycles = tokens_per_block, tuple(cycles)
        self.pages, self.states = tuple(CountedBlocks() for _ in cycles), CountedBlocks()
        self.clear()

    def clear(self) -> None:
        """Forget every block; nobody else holds a page."""
        self._roots: dict[str | None, TreeBlock] = {}
        for book in (*self.pages, self.states):
            book.clear()

    def match(self, scope: str | None, ids: Ids, *, partial: bool) -> tuple[Match, int]:
        """Token path of `ids`, whatever its pages hold; and the tokens it would have with parts of blocks allowed."""
        node, path, t = self._roots.get(scope), list[TreeBlock](), self._t
        for start in range(0, len(ids) if node else 0, t):
            assert node is not None
            name = ids[start : start + t]
            child = node.children.get(name.tobytes())
            if child is None:
                parts = [(common_prefix(c.ids, name), c) for c in node.children.values()]
                most = max((tokens for tokens, _ in parts), default=0)
                if most and partial and len(parts) < PARTIAL_MATCH_FANOUT:
                    path.append(next(c for tokens, c in parts if tokens == most))
                    return Match(tuple(path), start + most), start + most
                return Match(tuple(path), start), start + most
            path.append(child)
            node = child
        tokens = len(ids) if path else 0
        return Match(tuple(path), tokens), tokens

    def cut(self, match: Match, tokens: int) -> Match:
        """The first `tokens` tokens of a match."""
        return Match(match.blocks[: -(-tokens // self._t)], tokens)

    def prune(self, match: Match, cycles: Sequence[int], *, state: bool) -> Match:
        """Shorten a match until every page it needs is there: first the state, then the attention pages, again."""
        while match.tokens:
            if state:
                match = self._cut_to_state(match)
            gap = next(self._gaps(match, cycles), None)
            if gap is None:
                return match
            match = self.cut(match, gap)
        return match

    def _cut_to_state(self, match: Match) -> Match:
        for index in range(len(match.blocks) - 1, -1, -1):
            state = match.blocks[index].state
            if state is not None and state.tokens <= match.tokens - index * self._t:
                return self.cut(match, index * self._t + state.tokens)
        return Match((), 0)

    def _gaps(self, match: Match, cycles: Sequence[int]) -> Iterator[int]:
        """Where the match has to end because a needed page covers too little; first found first."""
        for cycle in cycles:
            for index in self.cycles[cycle].needed(match.tokens, self._t):
                matched = min(self._t, match.tokens - index * self._t)
                covered = match.blocks[index].covered(cycle)
                if covered < matched:
                    yield index * self._t + covered

    def commit(
        self, scope: str | None, ids: Ids, own: Sequence[Sequence[int | None]], state: int | None, *, window_only: bool
    ) -> None:
        """Store all of `ids`; a page takes the place of one that covers less, and the tree holds it beside others.

        `own[cycle][block]`: number of the committing request's own page, None where it only shares one. `state`:
        number of the recurrent state after the last token. `window_only` keeps only the pages that a reuse at
        exactly `len(ids)` needs.
        """
        t, node = self._t, self._roots.setdefault(scope, TreeBlock(None, ids[:0], len(self.cycles)))
        kept = [set(cycle.needed(len(ids), t)) for cycle in self.cycles]
        for index, start in enumerate(range(0, len(ids), t)):
            name = ids[start : start + t]
            node = self._child(node, name)
            for cycle, numbers in enumerate(own):
                number = numbers[index]
                kept_here = not window_only or index in kept[cycle]
                if number is not None and kept_here and node.covered(cycle) < len(name):
                    node.pages[cycle] = _replaced(self.pages[cycle], node.pages[cycle], Page(number, len(name)))
            if state is not None and start + t >= len(ids) and (node.state is None or node.state.tokens < len(name)):
                node.state = _replaced(self.states, node.state, Page(state, len(name)))

    def _child(self, node: TreeBlock, name: Ids) -> TreeBlock:
        """The block of these tokens: the same, one that has them as its beginning, or a new one.

        A new block takes the place of a shorter one that is its beginning, and that one's pages with what they cover.
        """
        if (same := node.children.get(name.tobytes())) is not None:
            return same
        shorter = None
        for child in node.children.values():
            common = common_prefix(child.ids, name)
            if common == len(name):
                return child
            if common == len(child.ids):
                shorter = child
        new = TreeBlock(node, name.copy(), len(self.cycles))
        if shorter is not None:
            del node.children[shorter.ids.tobytes()]
            new.pages, new.state = list(shorter.pages), shorter.state
        node.children[name.tobytes()] = new
        return new

    def blocks(self) -> Iterator[TreeBlock]:
        """Every committed block."""
        open_nodes = list(self._roots.values())
        while open_nodes:
            node = open_nodes.pop()
            yield from node.children.values()
            open_nodes.extend(node.children.values())

    def check_integrity(self, held: Sequence[Iterable[int]], states: Iterable[int]) -> None:
        """Short blocks are leaves, no block is the beginning of its sibling, no page covers more than its block.

        `held`, by cycle, and `states` are what requests hold: every other number is in the tree or free.
        """
        blocks = list(self.blocks())
        for cycle, numbers in enumerate(held):
            own = [block.pages[cycle] for block in blocks]
            self.pages[cycle].check_integrity([*numbers, *(page.number for page in own if page is not None)])
        kept = [block.state.number for block in blocks if block.state is not None]
        self.states.check_integrity([*states, *kept])
        seen: set[tuple[int, int]] = set()
        for block in blocks:
            assert block.parent is not None and block.parent.children[block.ids.tobytes()] is block
            assert len(block.ids) == self._t or not block.children, "a short block with blocks below it"
            pages = [page for page in (*block.pages, block.state) if page is not None]
            assert all(0 < page.tokens <= len(block.ids) for page in pages), "page covers more than its block"
            for cycle, page in enumerate(block.pages):
                if page is not None and page.tokens == len(block.ids):
                    assert (cycle, page.number) not in seen, "page of two blocks"
                    seen.add((cycle, page.number))
            for sibling in block.parent.children.values():
                begins = len(sibling.ids) < len(block.ids) and np.array_equal(
                    sibling.ids, block.ids[: len(sibling.ids)]
                )
                assert not begins, "a block is the beginning of its sibling"


def _replaced(book: CountedBlocks, old: Page | None, new: Page) -> Page:
    """The tree holds `new` instead of `old`."""
    book.share([new.number])
    book.drop([] if old is None else [old.number])
    return new
