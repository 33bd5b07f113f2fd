"""What one running request holds of SGLang's tree and pools."""

from __future__ import annotations

import numpy as np

from reference_engine.laws.base import Slots
from reference_engine.laws.parts.chained import Chained, Tokens
from reference_engine.laws.parts.page_radix import NO_PAGES, Key, Lock, RadixNode
from reference_engine.laws.sglang.config import SglangConfig


class Held:
    """A request's place in the tree, its pages and its states."""

    __slots__ = (
        "branching",
        "lock",
        "node",
        "page",
        "pages",
        "state",
        "track_slot",
        "tracked_len",
        "window_branching",
        "window_from",
        "window_pages",
    )

    def __init__(self, lock: Lock, page: int) -> None:
        self.node, self.page = lock.node, page
        """Where its pages begin: those up to the node's end belong to the tree."""
        self.lock: Lock | None = lock
        """What protects the path of `node`; None: the request has ended and is in the tree."""
        self.pages: Slots = NO_PAGES
        """Its own pages of full attention, behind those of the tree."""
        self.window_pages: Slots = NO_PAGES
        """As many of the sliding-window pool; valid from `window_from` on."""
        self.window_from = 0
        """Tokens whose sliding-window KV this request has freed, in whole pages."""
        self.window_branching: int | None = None
        """Where full attention matched but the window was gone: the next insertion stops there."""
        self.state: int | None = None
        """Slot of the running recurrent state."""
        self.track_slot: int | None = None
        """Slot that the next kept state is written to (`extra_buffer`)."""
        self.tracked_len: int | None = None
        """Position of the state in `track_slot`."""
        self.branching: int | None = None
        """Where full attention matched but no state is: the next prefill step keeps one there."""

    @property
    def shared(self) -> int:
        """Tokens whose pages belong to the tree, in whole pages."""
        return self.node.end

    @property
    def capacity(self) -> int:
        """Tokens that have pages."""
        return self.shared + len(self.pages) * self.page

    def part(self, start: int, end: int) -> slice:
        """Where its own pages of tokens `[start, end)` are."""
        return slice((start - self.shared) // self.page, (end - self.shared) // self.page)

    def hand_over(self, node: RadixNode, lock: Lock | None) -> None:
        """The tree has its pages up to the end of a node, which `lock` protects."""
        given = (node.end - self.shared) // self.page
        self.pages, self.window_pages = self.pages[given:], self.window_pages[given:]
        self.node, self.lock = node, lock

    @property
    def private_window_from(self) -> int:
        """First token whose sliding-window page is this request's own."""
        return max(self.shared, self.window_from)

    @property
    def own_window(self) -> Slots:
        """The sliding-window pages that it has to give back."""
        return self.window_pages[(self.private_window_from - self.shared) // self.page :]


def keyed(ids: Tokens, config: SglangConfig) -> Key:
    """Tree key of a token sequence: its tokens, or under EAGLE each token with its successor (one less)."""
    if not config.bigram:
        return ids
    if isinstance(ids, Chained):
        return ids.pairs()
    wide = ids.astype(np.int64)
    return (wide[:-1] << 32) | wide[1:]


def key_len(tokens: int, config: SglangConfig) -> int:
    """Elements in the key of that many tokens."""
    return max(tokens - 1, 0) if config.bigram else tokens
