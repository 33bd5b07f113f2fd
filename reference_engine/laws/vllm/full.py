"""vLLM, one full-attention group, no speculation.

Source: vLLM 0.23.0, 0.26.0, 0.30.0, 0.32.0 and 0.33.0, v1/core (kv_cache_manager, block_pool,
single_type_kv_cache_manager), read and executed in all five; for this group and without speculation
the five agree.

    hit = leading run of cached full blocks that ends at or below L-1

- Only complete blocks are keyed; a key covers the whole prefix, and the cache salt.
- A request for prompt log-probabilities skips the lookup and still publishes.
- Released blocks queue up tail first, so an evicted prefix loses its end first.
"""

from __future__ import annotations

import numpy as np

from reference_engine.laws.base import Law, Lease, PoolExhausted
from reference_engine.laws.parts.block_pool import BlockPool
from reference_engine.laws.parts.chained_blocks import BlockKey, ChainedBlockIndex
from reference_engine.laws.parts.full_attention import expectation, map_slots
from reference_engine.laws.parts.history import History
from vocabulary.engine import Feature, TokenRequest

VERSIONS = ("0.23", "0.26", "0.30", "0.32", "0.33")


class _Held:
    """A lease's pages and how far they are published."""

    __slots__ = ("key", "pages", "published")

    def __init__(self, pages: list[int], published: int, key: BlockKey) -> None:
        self.pages = pages
        self.published = published  # leading pages that are keyed
        self.key = key  # key of the last published page


class VllmFullAttention(Law):
    """Chained blocks over one pool."""

    def __init__(
        self, version: str, block_size: int, *, enable_prefix_caching: bool = True, num_blocks: int | None = None
    ) -> None:
        super().__init__()
        self.id, self.granule = f"vllm@{version}", block_size
        self.enabled = enable_prefix_caching
        self.pool_tokens = None if num_blocks is None else num_blocks * block_size
        self.index = ChainedBlockIndex(block_size)
        self.pool = BlockPool(num_blocks, self.index.evict)
        self.history = History()

    def admit(self, request: TokenRequest) -> Lease:
        """Match, pin the matched blocks, take blocks for the rest of the prompt."""
        ids = np.asarray(request.ids, np.int32)
        looked_up = self.enabled and Feature.PROMPT_LOGPROBS not in request.features
        limit = len(ids) - 1 if looked_up else 0
        pages = self.index.match(ids, request.namespace, limit)
        key = self.index.key_of(pages[-1]) if pages else self.index.root(request.namespace)
        for page in pages:
            self.pool.share(page)
        try:
            new = self.pool.take(-(-len(ids) // self.granule) - len(pages))
        except PoolExhausted:
            self.pool.give_back(reversed(pages))
            raise
        lease = Lease(
            request, expectation(self.history, request, self.granule, len(pages) * self.granule, looked_up=looked_up)
        )
        lease.held = held = _Held(pages + new, len(pages), key)
        map_slots(lease, held.pages, self.granule)
        return lease

    def computed(self, lease: Lease, end: int) -> None:
        """Key every block that is full now."""
        held = self._held(lease)
        lease.computed_len = max(lease.computed_len, end)
        if self.enabled:
            b = self.granule
            for i in range(held.published, lease.computed_len // b):
                held.key = self.index.publish(held.key, lease.ids[i * b : (i + 1) * b], held.pages[i])
                self.pool.mark_cached(held.pages[i])
                held.published = i + 1

    def append(self, lease: Lease, token_id: int) -> None:
        """Take another block when the last one is full."""
        held = self._held(lease)
        if lease.length == len(held.pages) * self.granule:
            held.pages += self.pool.take(1)
        lease.ids[lease.length] = token_id
        lease.length += 1
        map_slots(lease, held.pages, self.granule, start=lease.length - 1)

    def release(self, lease: Lease) -> None:
        """Return the blocks, tail first."""
        self.history.add(lease.ids[: lease.computed_len], lease.request.namespace)
        self.pool.give_back(reversed(self._held(lease).pages))

    def reset(self) -> None:
        """Forget everything."""
        assert self.pool.referenced == 0, "reset while requests hold blocks"
        self.index.clear()
        self.pool.clear()
        self.history.clear()

    def check_integrity(self) -> None:
        """The pool's books add up, and only its cached pages can be found."""
        self.pool.check_integrity()
        assert self.index.cached_pages() == self.pool._cached, "index and pool disagree on what is cached"

    @staticmethod
    def _held(lease: Lease) -> _Held:
        assert isinstance(lease.held, _Held)
        return lease.held
