"""A pool of equal pages: reference counts and the order in which unreferenced pages are handed out.

Source of the order: vLLM 0.32.0, v1/core/block_pool.py. Pages are taken from the front of one queue.
A page nobody references goes to the end of the queue when its content is cached (least recently
released is evicted first) and to the front when it is not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from reference_engine.laws.base import PoolExhausted


class BlockPool:
    """Page numbers `0 .. num_pages-1`; `num_pages=None` hands out new numbers for ever (prediction only)."""

    def __init__(self, num_pages: int | None, on_evict: Callable[[int], None]) -> None:
        """`on_evict(page)` is called when a cached page is handed out for new content."""
        self.num_pages = num_pages
        self._on_evict = on_evict
        self.clear()

    def clear(self) -> None:
        """All pages free, nothing cached."""
        self._next = 0
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._references: dict[int, int] = {}
        self._cached: set[int] = set()

    @property
    def available(self) -> int | None:
        """Pages that can be handed out now; None: no limit."""
        return None if self.num_pages is None else self.num_pages - self._next + len(self._queue)

    @property
    def referenced(self) -> int:
        """Pages held by at least one request."""
        return len(self._references)

    def take(self, count: int) -> list[int]:
        """Hand out `count` pages with one reference each; PoolExhausted, and no effect, when there are too few."""
        if self.available is not None and count > self.available:
            raise PoolExhausted(f"{count} pages wanted, {self.available} free or evictable")
        pages = []
        for _ in range(count):
            # Unused numbers come first, as they do in an engine's freshly built queue.
            if self.num_pages is None or self._next < self.num_pages:
                page = self._front_uncached()
                if page is None:
                    page, self._next = self._next, self._next + 1
            else:
                page = next(iter(self._queue))
                del self._queue[page]
            if page in self._cached:
                self._cached.remove(page)
                self._on_evict(page)
            self._references[page] = 1
            pages.append(page)
        return pages

    def _front_uncached(self) -> int | None:
        """The front of the queue if it was put there because it holds nothing; else None."""
        page = next(iter(self._queue), None)
        if page is None or page in self._cached:
            return None
        del self._queue[page]
        return page

    def share(self, page: int) -> None:
        """One more reference to a page that is cached or held."""
        if page in self._references:
            self._references[page] += 1
        else:
            del self._queue[page]
            self._references[page] = 1

    def mark_cached(self, page: int) -> None:
        """The page's content can be found by later requests."""
        self._cached.add(page)

    def give_back(self, pages: Iterable[int]) -> None:
        """Drop one reference each, in eviction order: the first of them is evicted first."""
        uncached = []
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                del self._references[page]
                if page in self._cached:
                    self._queue[page] = None
                else:
                    uncached.append(page)
        for page in reversed(uncached):
            self._queue[page] = None
            self._queue.move_to_end(page, last=False)

    def references(self, page: int) -> int:
        """How many requests hold a page."""
        return self._references.get(page, 0)

    def check_integrity(self) -> None:
        """Every number handed out so far is either queued or held, and cached pages exist."""
        queued, held = set(self._queue), set(self._references)
        assert not queued & held, f"pages both free and held: {sorted(queued & held)}"
        assert queued | held == set(range(self._next)), "pages neither free nor held"
        assert all(count > 0 for count in self._references.values()), "held page without a reference"
        assert self._cached <= queued | held, "cached page that was never handed out"
