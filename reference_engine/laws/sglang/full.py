"""SGLang, full attention, no speculation.

Source: SGLang 0.5.23, srt/managers/schedule_batch.py and srt/mem_cache, executed.

    hit = floor(min(longest common prefix with the tree, L-1) / page) * page

- Log-probabilities asked from prompt position s cap the lookup at s (s = 0 here).
- Finished requests and chunk ends insert their page floor, generated tokens included.
- Cache salts have trees of their own.
"""

from __future__ import annotations

import numpy as np

from reference_engine.laws.base import Law, Lease, PoolExhausted, Slots
from reference_engine.laws.parts.full_attention import expectation, map_slots
from reference_engine.laws.parts.history import History
from reference_engine.laws.parts.page_radix import FreePages, PageRadixTree, RadixNode
from vocabulary.engine import Feature, TokenRequest

VERSIONS = ("0.5.23",)


class _Held:
    """A lease's place in the tree and all its pages; the first `shared` of them belong to the tree."""

    __slots__ = ("node", "pages", "shared")

    def __init__(self, node: RadixNode, pages: Slots, shared: int) -> None:
        self.node, self.pages, self.shared = node, pages, shared


class SglangFullAttention(Law):
    """A page radix tree over one pool."""

    def __init__(
        self, version: str, page_size: int, *, disable_radix_cache: bool = False, num_pages: int | None = None
    ) -> None:
        super().__init__()
        self.id, self.granule = f"sglang@{version}", page_size
        self.enabled = not disable_radix_cache
        self.pool_tokens = None if num_pages is None else num_pages * page_size
        self.tree = PageRadixTree(page_size)
        self.free = FreePages(num_pages)
        self.history = History()
        self._leases: set[Lease] = set()

    def admit(self, request: TokenRequest) -> Lease:
        """Match, lock the path, take pages for the rest of the prompt, evicting if need be."""
        ids = np.asarray(request.ids, np.int32)
        looked_up = self.enabled and Feature.PROMPT_LOGPROBS not in request.features
        node, pages = self.tree.match(ids[: len(ids) - 1 if looked_up else 0], request.namespace)
        self.tree.lock(node)
        try:
            new = self._take(-(-len(ids) // self.granule) - len(pages))
        except PoolExhausted:
            self.tree.unlock(node)
            raise
        lease = Lease(
            request, expectation(self.history, request, self.granule, len(pages) * self.granule, looked_up=looked_up)
        )
        lease.held = held = _Held(node, np.concatenate([pages, new]), len(pages))
        self._leases.add(lease)
        map_slots(lease, held.pages, self.granule)
        return lease

    def computed(self, lease: Lease, end: int) -> None:
        """Insert the page floor; pages the tree had already are exchanged for the tree's."""
        lease.computed_len = max(lease.computed_len, end)
        held, depth = self._held(lease), lease.computed_len // self.granule
        if not self.enabled or depth <= held.shared:
            return
        node, path, spare = self.tree.insert(
            lease.ids[: depth * self.granule], held.pages[:depth], lease.request.namespace
        )
        self.tree.lock(node)
        self.tree.unlock(held.node)
        self.free.give_back(spare)
        held.node, held.pages, held.shared = node, np.concatenate([path, held.pages[depth:]]), depth
        map_slots(lease, held.pages, self.granule)

    def append(self, lease: Lease, token_id: int) -> None:
        """Take another page when the last one is full."""
        held = self._held(lease)
        if lease.length == len(held.pages) * self.granule:
            held.pages = np.concatenate([held.pages, self._take(1)])
        lease.ids[lease.length] = token_id
        lease.length += 1
        map_slots(lease, held.pages, self.granule, start=lease.length - 1)

    def release(self, lease: Lease) -> None:
        """Unlock the path and free the pages the tree did not take."""
        held = self._held(lease)
        self.history.add(lease.ids[: lease.computed_len], lease.request.namespace)
        self.tree.unlock(held.node)
        self.free.give_back(held.pages[held.shared :])
        self._leases.remove(lease)

    def reset(self) -> None:
        """Forget everything."""
        assert not self._leases, "reset while requests run"
        self.tree.clear()
        self.free.clear()
        self.history.clear()

    def check_integrity(self) -> None:
        """Every page is free, in the tree, or the private tail of one lease; only leases lock paths."""
        tails = [self._held(lease).pages[self._held(lease).shared :] for lease in self._leases]
        self.free.check_integrity(np.concatenate([self.tree.pages(), *tails]))
        assert self._leases or not self.tree.locked(), "path locked by nobody"

    def _take(self, count: int) -> Slots:
        if missing := self.free.lacking(count):
            self.free.give_back(self.tree.evict(missing))
        return self.free.take(count)

    @staticmethod
    def _held(lease: Lease) -> _Held:
        assert isinstance(lease.held, _Held)
        return lease.held
