"""Every place a followed law names holds what the prompt needs there, over random requests in small pools.

`HITPARITY_PLACES` is the number of random requests per law and options (60 where it is not set).
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from reference_engine.laws.base import PoolExhausted
from reference_engine.laws.registry import make_law
from tests.laws.tagged_memory import TaggedMemory
from vocabulary.engine import TokenRequest

VLLM = [
    {"groups": ["full:16"], "num_gpu_blocks_override": 40},
    {"groups": ["full:16", "swa:16:48"], "num_gpu_blocks_override": 60},
    {"groups": ["full:32", "gdn:32"], "num_gpu_blocks_override": 40},
    {"groups": ["full:32", "gdn:32"], "num_gpu_blocks_override": 40, "max_num_batched_tokens": 64},
    {"groups": ["full:32", "swa:32:64", "gdn:32"], "num_gpu_blocks_override": 60},
]
SINCE_0_30 = [
    {"groups": ["full:16", "gdn:64"], "num_gpu_blocks_override": 80},
    {"groups": ["full:64", "gdn:64"], "prefix_match_unit": 16, "num_gpu_blocks_override": 40},
]
SGLANG = [
    {"groups": ["full"], "page_size": 16, "max_total_tokens": 800},
    {"groups": ["full", "swa:64"], "page_size": 16, "max_total_tokens": 1600},
    {"groups": ["full", "gdn"], "page_size": 1, "max_total_tokens": 800, "max_mamba_cache_size": 12},
    {"groups": ["full", "gdn"], "page_size": 64, "max_total_tokens": 3200, "max_mamba_cache_size": 12},
]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((law, options) for law in ("vllm@0.23", "vllm-ascend@0.23") for options in VLLM),
    *((law, options) for law in ("vllm@0.30", "vllm@0.33") for options in (*VLLM, *SINCE_0_30)),
    *(("sglang@0.5.23", options) for options in SGLANG),
]
REQUESTS = int(os.environ.get("HITPARITY_PLACES", "60"))


@pytest.mark.parametrize(("law_id", "options"), CASES, ids=str)
def test_every_place_holds_what_is_read(law_id: str, options: dict[str, Any]) -> None:
    memory = TaggedMemory(make_law(law_id, options))
    served, hits = serve_at_random(memory, seed=1, requests=REQUESTS)
    assert served > REQUESTS // 2 and hits > served // 10, (served, hits)


def serve_at_random(memory: TaggedMemory, *, seed: int, requests: int) -> tuple[int, int]:
    """Prompts that extend, cut and edit earlier ones; how many were served, and how many of them hit."""
    rng, known, served, hits = random.Random(seed), [[0]], 0, 0
    for number in range(requests):
        ids = list(rng.choice(known))
        ids = ids[: rng.choice([len(ids), rng.randrange(len(ids) + 1)])]
        ids += [rng.randrange(1000) for _ in range(rng.choice([1, 15, 16, 17, 33, 64, 100]))]
        ids = ids[:400]
        output = [rng.randrange(1000) for _ in range(rng.choice([1, 1, 2, 20, 70]))]
        request = TokenRequest(request_id=str(number), ids=tuple(ids), max_tokens=len(output))
        try:
            expectation = memory.serve(request, output)
        except PoolExhausted:  # the engine would preempt it; here it is given up and must leave nothing behind
            continue
        served, hits = served + 1, hits + (expectation.hit_len > 0)
        known = [*known[-12:], ids + output[:-1]]
    return served, hits
