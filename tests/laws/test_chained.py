"""Prompts by chained blocks and the same prompts by tokens: every law says the same, ledger and all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from reference_engine.laws.base import Lease
from reference_engine.laws.parts.chained import Chained, chained_request
from reference_engine.laws.parts.history import common_prefix
from reference_engine.laws.registry import make_law
from reference_engine.laws.vllm.law import VllmLaw
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover

OUTPUTS = 100_000
LAWS: list[tuple[str, dict[str, Any]]] = [
    ("vllm@0.23", {"groups": ["full:16", "gdn:16"], "num_speculative_tokens": 1, "num_blocks": 80}),
    ("vllm@0.26", {"groups": ["full:48", "gdn:48"], "num_blocks": 60}),
    ("vllm@0.30", {"groups": ["full:16", "swa:16:40"]}),
    ("vllm@0.32", {"block_size": 16}),
    ("vllm@0.32", {"block_size": 48}),
    ("vllm@0.32", {"block_size": 16, "num_blocks": 60}),
    ("vllm@0.33", {"block_size": 16, "num_speculative_tokens": 1}),
    ("vllm@0.33", {"groups": ["full:16", "gdn:16"], "num_speculative_tokens": 1, "num_blocks": 80}),
    ("vllm-ascend@0.30", {"block_size": 16, "num_blocks": 60}),
    ("sglang@0.5.23", {"page_size": 1, "max_total_tokens": 1000}),
    ("sglang@0.5.23", {"page_size": 24, "max_total_tokens": 2000}),
    ("sglang@0.5.23", {"page_size": 16, "speculative_algorithm": "EAGLE"}),
    ("sglang@0.5.23", {"groups": ["full", "swa:40"], "page_size": 16, "chunked_prefill_size": 64}),
    ("sglang@0.5.23", {"groups": ["full", "gdn"], "max_mamba_cache_size": 20}),
    ("llama.cpp", {"n_parallel": 4}),
    ("llama.cpp", {"n_parallel": 2, "cache_ram_mib": -1, "n_ctx_slot": 1024}),
    ("llama.cpp", {"groups": ["full", "swa:40"], "n_parallel": 2, "n_ubatch": 16}),
    ("llama.cpp", {"groups": ["full", "gdn"], "n_parallel": 2, "n_batch": 64, "n_ubatch": 16}),
]


def traffic(seed: int, block: int, requests: int) -> Iterator[tuple[np.ndarray, int, np.ndarray, int]]:
    """Block numbers, prompt length, tokens and answer's length; prompts grow, fork, shrink and end inside blocks."""
    rng = np.random.default_rng(seed)
    paths: list[list[int]] = [[]]
    tokens: dict[int, np.ndarray] = {}
    children: dict[int, int] = {}
    while requests:
        path = list(paths[rng.integers(len(paths))])
        path = path[: rng.integers(len(path) + 1)]
        for _ in range(rng.integers(5)):
            parent, number = path[-1] if path else 0, len(tokens) + 1
            children[parent] = children.get(parent, 0) + 1
            tokens[number] = rng.integers(1000, 5000, block)
            tokens[number][0] = children[parent]
            path.append(number)
        if path:
            requests -= 1
            paths.append(path)
            length = max(len(path) * block - int(rng.integers(block)) * (rng.random() < 0.8), 1)
            held = path[: -(-length // block)]
            ids = np.concatenate([tokens[number] for number in held])[:length]
            yield np.asarray(held), length, ids, int(rng.integers(1, 40 if rng.random() < 0.3 else 2))


@pytest.mark.parametrize(("law_id", "options"), LAWS)
@pytest.mark.parametrize("block", [16, 24, 64])
def test_blocks_and_tokens_give_one_expectation(law_id: str, options: dict[str, Any], block: int) -> None:
    by_tokens, by_blocks, replay = (
        make_law(law_id, options),
        make_law(law_id, options),
        make_law(law_id, options).replay(),
    )
    served = hits = 0
    for number, (blocks, length, ids, count) in enumerate(traffic(block, block, 40), start=1):
        namespace = "other" if number % 7 == 0 and by_tokens.can_salt else None
        name, output = str(number), (OUTPUTS + number,) * count
        token_form = TokenRequest(request_id=name, ids=tuple(ids.tolist()), max_tokens=count, namespace=namespace)
        block_form = chained_request(name, blocks, block, length, number, count, namespace=namespace)
        said = []
        for serve, request in ((by_tokens.serve, token_form), (by_blocks.serve, block_form), (replay, block_form)):
            try:
                said.append(serve(request, output))
            except LawDoesNotCover as error:
                said.append(str(error))
        assert said[0] == said[1] == said[2], f"request {number}"
        served += not isinstance(said[0], str)
        hits += not isinstance(said[0], str) and said[0].hit_len > 0
        by_blocks.check_integrity()
    assert served > 20 and hits > 2


def test_common_prefix_is_that_of_the_tokens() -> None:
    rows = list(traffic(3, 16, 40))
    chains = [Chained(blocks, 16, length, 1000 + i, length) for i, (blocks, length, _, _) in enumerate(rows)]
    for a, (_, _, ids, _) in zip(chains, rows, strict=True):
        for b, (_, _, others, _) in zip(chains, rows, strict=True):
            assert common_prefix(a, b) == common_prefix(ids.astype(np.int32), others.astype(np.int32))


def test_a_law_that_compares_tokens_refuses_blocks() -> None:
    law = make_law("llama.cpp", {"n_cache_reuse": 16})
    assert not law.reads_chains
    assert law.replay() == law.serve
    with pytest.raises(LawDoesNotCover, match="inside prompts"):
        law.send(chained_request("1", np.array([1, 2]), 16, 32, 1))
    with pytest.raises(TypeError, match="give this law its tokens"):
        make_law("llama-cpp-python@0.3", {}).send(chained_request("1", np.array([1, 2]), 16, 32, 1))


@pytest.mark.parametrize("law_id", ["vllm@0.32", "vllm@0.33"])
def test_a_bounded_pool_forgets_keys_and_nothing_else(monkeypatch: pytest.MonkeyPatch, law_id: str) -> None:
    options = {"block_size": 16, "num_blocks": 120, "num_speculative_tokens": 1}
    keeping = make_law(law_id, options)
    monkeypatch.setattr("reference_engine.laws.vllm.law.KEYS", 0)
    forgetting = make_law(law_id, options)
    assert isinstance(keeping, VllmLaw) and isinstance(forgetting, VllmLaw)
    open_leases: list[tuple[VllmLaw, Lease]] = []
    for number, (blocks, length, _, count) in enumerate(traffic(5, 64, 400), start=1):
        request = chained_request(str(number), blocks, 64, length, number, count)
        said = []
        for law in (keeping, forgetting):
            try:
                if number % 40 == 0:  # a request that stays, with its keys
                    lease = law.admit(request)
                    said.append(lease.expectation)
                    open_leases.append((law, lease))
                else:
                    said.append(law.send(request))
                    law.finish(request, (OUTPUTS + number,) * count)
            except LawDoesNotCover as error:
                said.append(str(error))
        assert said[0] == said[1]
        if number % 40 == 20:
            while open_leases:
                law, lease = open_leases.pop()
                law.computed(lease, lease.request.prompt_len)
                law.release(lease)
    keeping.check_integrity()
    forgetting.check_integrity()
    assert 3 * forgetting.radix.count < keeping.radix.count, (forgetting.radix.count, keeping.radix.count)


def test_block_numbers_may_be_large_from_the_first_on() -> None:
    law = make_law("vllm@0.32", {"block_size": 16})
    for name, hit in (("1", 0), ("2", 32)):
        request = chained_request(name, np.array([5000, 7000, 6000]), 16, 48, int(name))
        assert law.send(request).hit_len == hit
        law.finish(request, (OUTPUTS,))
        law.check_integrity()
