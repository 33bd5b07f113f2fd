"""What one running request holds of SGLang's tree and pools."""

from __future__ import annotations

import numpy as np

from reference_engine.laws.base import Slots
from reference_engine.laws.parts.chained import Chained, Tokens
from reference_engine.laws.parts.page_radix import NO_PAGES, Key, Lock
from reference_engine.laws.sglang.config import SglangConfig


class Held:
    """A request's place in the tree, its pages and its states."""

    __slots__ = (
        "branching",
        "lock",
        "pages",
        "published",
        "shared",
        "state",
        "steps",
        "track_slot",
        "tracked_len",
        "window_branching",
        "window_from",
        "window_pages",
    )

    def __init__(self, lock: Lock, shared: int) -> None:
        self.lock = lock
        self.shared = shared
        """Tokens whose pages belong to the tree, in whole pages."""
        self.pages: Slots = NO_PAGES
        """Pages of full attention; those of the first `shared` tokens belong to the tree."""
        self.window_pages: Slots = NO_PAGES
        """Pages of the sliding-window pool, by position; valid from `window_from` and the tree's last window on."""
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
        self.published = False
        """Whether the request has ended and is in the tree."""
        self.steps: list[tuple[int, int]] = []
        """Prefill steps so far."""

    @property
    def private_window_from(self) -> int:
        """First token whose sliding-window page is this request's own."""
        return max(self.shared, self.window_from)


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
