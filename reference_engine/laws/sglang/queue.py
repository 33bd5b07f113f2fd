"""Requests that wait together: the order in which SGLang takes them, and what each then finds.

Source: SGLang 0.5.23, srt/managers/{schedule_policy,scheduler}.py, executed.

- Every prefill step takes the unfinished chunk first and then waiting requests while tokens are left
  (`chunked_prefill_size`, `max_prefill_tokens`). Requests of one step cannot reuse each other's tokens.
- `fcfs` (the default) keeps the order of arrival. `lpm` puts the longest match first and holds back, behind all
  others, whoever matches at most 32 tokens in the tree but shares 32 or more with another waiting request. Held back
  means last: with room in the step they still run in it, and miss.
- A request of one output token is in the tree when its last prefill step ends; others publish their prompt then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference_engine.laws.base import Expectation, Lease
from reference_engine.laws.parts.history import History
from reference_engine.laws.sglang.law import SglangLaw
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover

CHECK_THRESHOLD = 32
"""Longest match in the tree with which a request is compared with the others that wait."""
HOLD_BACK_THRESHOLD = 32
"""Tokens shared with another waiting request that hold a request back."""
MAX_PREFILL_TOKENS = 16384
"""Default of max_prefill_tokens."""
POLICIES = ("fcfs", "lpm")


def send_together(
    law: SglangLaw,
    requests: Sequence[TokenRequest],
    *,
    schedule_policy: str = "fcfs",
    max_prefill_tokens: int = MAX_PREFILL_TOKENS,
) -> list[Expectation]:
    """Predict requests that are all queued before the first step; `law.finish` must follow for each.

    Covers pools with room for all of them. LawDoesNotCover for another policy.
    """
    if schedule_policy not in POLICIES:
        raise LawDoesNotCover(f"{law.id}: schedule_policy = {schedule_policy!r}: {', '.join(POLICIES)}")
    waiting, taken = list(requests), dict[str, Lease]()
    chunked: Lease | None = None
    while waiting or chunked is not None:
        step: list[tuple[Lease, int]] = []
        budget, tokens = law.config.chunk, max_prefill_tokens
        if schedule_policy == "lpm":
            waiting = longest_first(law, waiting)
        if chunked is not None:
            end = law.chunk_end(chunked)
            step.append((chunked, end))
            used = _pages(law, end - chunked.computed_len)
            budget, tokens = None if budget is None else budget - used, tokens - used
        while waiting and tokens > 0 and (budget is None or budget >= law.granule):
            lease = law.admit(waiting[0])
            rest = _pages(law, waiting[0].prompt_len - lease.computed_len)
            if budget is None and step and rest >= tokens:
                law.release(lease)
                break
            end = law.chunk_end(lease, budget)
            step.append((lease, end))
            taken[waiting.pop(0).request_id] = lease
            used = _pages(law, end - lease.computed_len)
            budget, tokens = None if budget is None else budget - used, tokens - used
        chunked = None
        for lease, end in step:
            law.computed(lease, end)
            if end < lease.request.prompt_len:
                chunked = lease
            elif lease.request.max_tokens <= 1:
                law.publish_finished(lease)
    law.expect(taken.values())
    return [taken[request.request_id].expectation for request in requests]


def longest_first(law: SglangLaw, waiting: Sequence[TokenRequest]) -> list[TokenRequest]:
    """The order of `lpm`: longest match first, those held back last, equal ones as they came."""
    others, keys = History(), {}
    for request in waiting:
        ids, matched = request.array, law.matched(request)
        held_back = matched <= CHECK_THRESHOLD and others.lcp(ids, request.namespace) >= HOLD_BACK_THRESHOLD
        if matched <= CHECK_THRESHOLD and not held_back:
            others.add(ids, request.namespace)
        keys[request.request_id] = np.inf if held_back else -min(matched, len(ids) - 1)
    return sorted(waiting, key=lambda request: keys[request.request_id])


def _pages(law: SglangLaw, tokens: int) -> int:
    return -(-tokens // law.granule) * law.granule
