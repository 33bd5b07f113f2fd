"""The law by stretches against the law by blocks: the same expectations, refusals included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from reference_engine.laws.base import Law
from reference_engine.laws.parts.chained import chained_request
from reference_engine.laws.registry import make_law
from reference_engine.laws.vllm.law import VllmLaw
from reference_engine.laws.vllm.serial import Serial
from vocabulary.errors import LawDoesNotCover
from vocabulary.ledger import Cause

Prompt = tuple[np.ndarray, int]


def traffic(seed: int, block: int, requests: int) -> Iterator[Prompt]:
    """Prompts that grow, fork, shrink and come again, many of them whole blocks."""
    rng = np.random.default_rng(seed)
    paths: list[list[int]] = [[]]
    seen: list[Prompt] = []
    count, whole = 0, rng.random()
    for _ in range(requests):
        if seen and rng.random() < 0.3:
            yield seen[-1 - min(int(rng.geometric(0.3)) - 1, len(seen) - 1)]
            continue
        path = list(paths[-1 - min(int(rng.geometric(0.2)) - 1, len(paths) - 1)])
        path = path[: rng.integers(len(path) + 1)] if rng.random() < 0.5 else path
        for _ in range(rng.integers(5)):
            count += 1
            path.append(count)
        if path:
            paths.append(path)
            length = len(path) * block - int(rng.integers(block)) * (rng.random() > whole)
            if length > 16 and rng.random() < 0.3:
                length = length // 16 * 16
            seen.append((np.asarray(path[: -(-length // block)]), length))
            yield seen[-1]


@pytest.mark.parametrize("law_id", ["vllm@0.23", "vllm@0.26", "vllm@0.32", "vllm@0.33", "vllm-ascend@0.30"])
@pytest.mark.parametrize("block", [8, 16, 24, 64, 512])
def test_it_says_what_the_law_says(law_id: str, block: int) -> None:
    evicted = doubled = refused = preempted = 0
    for seed in range(12):
        rng = np.random.default_rng(1000 + seed)
        options: dict[str, Any] = {"block_size": int(rng.choice([16, 48]))}
        if seed % 6:
            options["num_blocks"] = int(rng.integers(5, 40)) * max(1, block // 16)
        if seed % 4 == 0:
            options["max_model_len"] = 12 * block
        law, replaying = make_law(law_id, options), make_law(law_id, options)
        assert isinstance(law, VllmLaw)
        serve = replaying.replay()
        assert isinstance(serve.__self__, Serial)  # type: ignore[attr-defined]
        for number, (blocks, length) in enumerate(traffic(seed, block, 150), start=1):
            spaces = {"namespace": str(rng.integers(2)), "lora": f"a@{rng.integers(2)}"} if seed % 3 == 0 else {}
            count = int(rng.integers(1, 4 * block)) if seed % 2 else 1
            request = chained_request(str(number), blocks, block, length, number, count, **spaces)
            said: list[object] = []
            for each in (Law.replay(law), serve):
                try:
                    said.append(each(request, (0,) * count))
                except LawDoesNotCover as error:
                    said.append((type(error), str(error)))
            assert said[0] == said[1], f"seed {seed}, request {number}"
            ledger = getattr(said[1], "ledger", None)
            refused += ledger is None
            preempted += ledger is None and "preempt" in str(said[1])
            evicted += ledger is not None and ledger.tokens(Cause.EVICTED) > 0
        doubled += sum(map(len, law.blocks._others.values()))
    assert evicted > 50 and refused and preempted and doubled


def test_other_configurations_are_served_by_the_law_itself() -> None:
    for options in (
        {"enable_prefix_caching": False},
        {"num_speculative_tokens": 1},
        {"groups": ["full:16", "swa:16:40"]},
    ):
        law = make_law("vllm@0.32", options)
        serve = law.replay()
        request = chained_request("1", np.array([1, 2]), 32, 64, 1)
        assert serve(request, (0,)).hit_len in (0, None)
        second = chained_request("2", np.array([1, 2]), 32, 64, 2)
        assert serve(second, (0,)) == _after_one(options)


def _after_one(options: dict[str, Any]) -> object:
    law = make_law("vllm@0.32", options)
    for number in (1, 2):
        request = chained_request(str(number), np.array([1, 2]), 32, 64, number)
        said = law.send(request)
        law.finish(request, (0,))
    return said
