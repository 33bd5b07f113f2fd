"""Asking a law for a series of prompts, as the tests of vLLM's laws write them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reference_engine.laws.base import Expectation, Law
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest

VERSIONS = ("0.23", "0.26", "0.30", "0.32", "0.33")
P = range(1, 30_000)
"""One long prefix; prompts are slices of it."""
_count = itertools.count()


def other(count: int) -> list[int]:
    """IDs used nowhere else."""
    start = 100_000 + next(_count) * 10_000
    return list(range(start, start + count))


def ask(law: Law, ids: Iterable[int], output: Sequence[int] = (7,), **fields: Any) -> Expectation:
    """One request, its generated tokens, and the books afterwards."""
    request = TokenRequest(request_id=str(next(_count)), ids=tuple(ids), max_tokens=len(output), **fields)
    expectation = law.send(request)
    law.finish(request, output)
    law.check_integrity()
    return expectation


def hits(law_id: str, options: Mapping[str, Any], *prompts: Iterable[int]) -> list[int]:
    """Hits of prompts sent in order to an empty cache."""
    law = make_law(law_id, options)
    return [ask(law, prompt).hit_len for prompt in prompts]


def repeated(law_id: str, options: Mapping[str, Any], length: int, times: int = 2) -> list[int]:
    """Hits of the second and later sends of one prompt."""
    return hits(law_id, options, *[P[:length]] * times)[1:]


def steps(law: Law, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Prefill steps of a prompt; it is not kept."""
    lease = law.admit(TokenRequest(request_id=str(next(_count)), ids=tuple(ids)))
    spans = []
    while lease.computed_len < len(ids):
        end = law.chunk_end(lease)
        spans.append((lease.computed_len, end))
        law.computed(lease, end)
    law.release(lease)
    return spans
