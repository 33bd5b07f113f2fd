"""Time SGLang's own radix cache on resident and new prompts; run by SGLang's Python, prints one JSON line.

    python sglang_tree.py '{"page_size": 16, "core": "rust", "lengths": [1024], "residents": 8, "repeats": 5}'

Assumption: SGLang 0.5.23, UnifiedRadixCache with full attention only; `core` "rust" is its compiled default. A prompt's
cost is match, allocation, insertion and lock handling; no scheduler, no model.
"""

import json
import os
import random
import sys
import time
from array import array

import torch


def main() -> None:
    """Build a tree, make prompts resident, time repeats and new prompts."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    asked = json.loads(sys.argv[1])
    page, lengths, residents, repeats = (asked[key] for key in ("page_size", "lengths", "residents", "repeats"))
    rng = random.Random(0)
    rows = []
    for length in lengths:
        size = (length + page) * (residents + repeats + 4)
        pool = ReqToTokenPool(size=4, max_context_len=1 << 18, device="cpu", enable_memory_saver=False)
        if page == 1:
            allocator = TokenToKVPoolAllocator(size, torch.bfloat16, "cpu", None, False)
        else:
            allocator = PagedTokenToKVPoolAllocator(size // page * page, page, torch.bfloat16, "cpu", None, False)
        tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=pool,
                token_to_kv_pool_allocator=allocator,
                page_size=page,
                is_eagle=False,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=asked["core"],
            )
        )

        def serve(ids: array, tree: UnifiedRadixCache = tree, allocator: object = allocator) -> tuple[int, list[float]]:
            start = time.perf_counter()
            match = tree.match_prefix(MatchPrefixParams(key=RadixKey(ids, limit=len(ids) - 1)))
            looked_up = time.perf_counter()
            hit = match.device_prefix_len
            whole = len(ids) // page * page
            known = tree.path_device_indices(match.last_device_node)
            new = allocator.alloc(whole - hit) if whole > hit else torch.empty(0, dtype=torch.int64)
            tree.insert(InsertParams(key=RadixKey(ids[:whole]), value=torch.cat([known, new]), prev_prefix_len=hit))
            return hit, [looked_up - start, time.perf_counter() - start]

        prompts = [array("q", rng.choices(range(150_000), k=length)) for _ in range(residents)]
        for ids in prompts:
            serve(ids)
        warm, cold = [], []
        for number in range(repeats):
            hit, times = serve(prompts[number % residents])
            assert hit == (length - 1) // page * page, hit
            warm.append(times)
            hit, times = serve(array("q", rng.choices(range(150_000), k=length)))
            assert hit == 0
            cold.append(times)
        rows.append(
            {
                "prompt_len": length,
                "lookup_s": [lookup for lookup, _ in warm],
                "warm_send_s": [whole for _, whole in warm],
                "cold_send_s": [whole for _, whole in cold],
            }
        )
    sys.stdout.write(json.dumps(rows) + "\n")


main()
