"""Time vLLM's own KV cache manager on resident and new prompts; run by vLLM's Python, prints one JSON line.

    python vllm_manager.py '{"block_size": 16, "lengths": [1024], "residents": 8, "repeats": 5}'

Assumption: vLLM 0.32.0. A prompt's cost is what the engine core does for it: chained block hashes (SHA-256, as by
default), lookup, allocation, and the free at its end. One full-attention group; no model, no tensors.
"""

import json
import os
import random
import sys
import time

import torch

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    """Build a manager, make prompts resident, time repeats and new prompts."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    asked = json.loads(sys.argv[1])
    block, lengths, residents, repeats = (asked[key] for key in ("block_size", "lengths", "residents", "repeats"))
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = sum(length * (residents + 2 * repeats) for length in lengths) // block + 1024
    config = KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        hash_block_size=block,
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(block, sha256)
    rng = random.Random(0)
    rows = []
    for length in lengths:
        manager = KVCacheManager(config, 1 << 20, block, block)

        def serve(ids: list[int], number: int, manager: KVCacheManager = manager) -> tuple[int, list[float]]:
            start = time.perf_counter()
            request = Request(str(number), ids, SamplingParams(max_tokens=1), None, block_hasher=hasher)
            hashed = time.perf_counter()
            computed, hit, *_ = manager.get_computed_blocks(request)
            looked_up = time.perf_counter()
            assert manager.allocate_slots(request, len(ids) - hit, hit, computed) is not None
            manager.free(request)
            return hit, [looked_up - hashed, looked_up - start, time.perf_counter() - start]

        prompts = [rng.choices(range(150_000), k=length) for _ in range(residents)]
        for number, ids in enumerate(prompts):
            serve(ids, number)
        warm, cold = [], []
        for number in range(repeats):
            hit, times = serve(prompts[number % residents], 1000 + number)
            assert hit == (length - 1) // block * block
            warm.append(times)
            hit, times = serve(rng.choices(range(150_000), k=length), 2000 + number)
            assert hit == 0
            cold.append(times)
        rows.append(
            {
                "prompt_len": length,
                "lookup_s": [lookup for lookup, _, _ in warm],
                "hash_and_lookup_s": [both for _, both, _ in warm],
                "warm_send_s": [whole for _, _, whole in warm],
                "cold_send_s": [whole for _, _, whole in cold],
            }
        )
    sys.stdout.write(json.dumps(rows) + "\n")


main()
