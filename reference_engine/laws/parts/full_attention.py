"""What block and page caches share for one full-attention group: the ledger's order and the slot map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference_engine.laws.base import Expectation, Lease, Slots
from reference_engine.laws.parts.history import History
from vocabulary.engine import TokenRequest
from vocabulary.ledger import Cause, Ledger


def expectation(history: History, request: TokenRequest, granule: int, hit: int, *, looked_up: bool) -> Expectation:
    """Explain a hit of whole granules: ceilings in the order in which they lower it.

    `looked_up` is false where a flag or a request feature kept the engine from looking.
    """
    ids, length = request.array, request.prompt_len
    lcp = history.lcp(ids, request.namespace)
    cap = min(lcp, length - 1)
    ledger = Ledger.waterfall(
        length,
        [
            (Cause.NOVEL, max(lcp, history.lcp_elsewhere(ids, request.namespace))),
            (Cause.NAMESPACE, lcp),
            (Cause.LAST_TOKEN, length - 1),
            (Cause.DISABLED, cap if looked_up else 0),
            (Cause.GRANULE, cap // granule * granule),
            (Cause.EVICTED, hit),
        ],
    )
    return Expectation(hit_len=hit, position_start=hit, ledger=ledger, per_group={"full": hit}, junction=hit)


def map_slots(lease: Lease, pages: Sequence[int] | Slots, page_size: int, *, start: int = 0) -> None:
    """Fill in the pool slots of the lease's positions from `start` on, given the page of each granule."""
    first = start // page_size
    positions = np.arange(start, lease.length)
    held = np.asarray(pages[first:], np.int64)
    lease.slots[start : lease.length] = held[positions // page_size - first] * page_size + positions % page_size
