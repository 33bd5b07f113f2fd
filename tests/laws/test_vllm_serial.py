"""The law by stretches against the law by blocks: the same expectations, refusals included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from reference_engine.laws.base import Expectation
from reference_engine.laws.parts.chained import chained_request
from reference_engine.laws.registry import make_law
from reference_engine.laws.vllm.law import VllmLaw
from reference_engine.laws.vllm.serial import Serial
from vocabulary.errors import LawDoesNotCover
from vocabulary.ledger import Cause

Prompt = tuple[np.ndarray, int]
Sent = tuple[Prompt, int, dict[str, str]]
Said = Iterator[tuple[int, Expectation | str]]


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


def same(law_id: str, options: dict[str, Any], prompts: Iterable[Sent], block: int) -> Said:
    """How many blocks are held twice and what both say, by request; prompts with their answers' lengths and spaces."""
    law, replaying = make_law(law_id, options), make_law(law_id, options)
    serve = replaying.replay()
    assert isinstance(serve.__self__, Serial)  # type: ignore[attr-defined]
    for number, ((blocks, length), count, spaces) in enumerate(prompts, start=1):
        request = chained_request(str(number), blocks, block, length, number, count, **spaces)
        said: list[Expectation | str] = []
        for each in (law.serve, serve):
            try:
                said.append(each(request, (0,) * count))
            except LawDoesNotCover as error:
                said.append(f"{type(error)} {error}")
        assert said[0] == said[1], f"{options}, request {number}"
        assert isinstance(law, VllmLaw)
        yield sum(map(len, law.blocks._others.values())), said[0]


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
        prompts = (
            (
                prompt,
                int(rng.integers(1, 4 * block)) if seed % 2 else 1,
                {"namespace": str(rng.integers(2)), "lora": f"a@{rng.integers(2)}"} if seed % 3 == 0 else {},
            )
            for prompt in traffic(seed, block, 150)
        )
        for twice, said in same(law_id, options, prompts, block):
            refused += isinstance(said, str)
            preempted += isinstance(said, str) and "preempt" in said
            evicted += not isinstance(said, str) and said.ledger.tokens(Cause.EVICTED) > 0
            doubled += twice
    assert evicted > 50 and refused and preempted and doubled


@pytest.mark.parametrize("law_id", ["vllm@0.23", "vllm@0.32"])
def test_of_blocks_held_twice_the_oldest_answers(law_id: str) -> None:
    """Few prompts that begin alike and end inside one block of the trace, most of them on a boundary of the pool's."""
    doubled = evicted = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        ends = [int(rng.integers(1, 17)) * 4 for _ in range(5)]
        paths = [np.array([1]), np.array([1, 2]), np.array([1, 3]), np.array([4])]

        def prompt(rng: np.random.Generator = rng, ends: list[int] = ends, paths: list[Any] = paths) -> Prompt:
            path = paths[rng.integers(4)]
            return path, 64 * (len(path) - 1) + int(rng.choice(ends)) - int(rng.random() < 0.1)

        options = {"block_size": 4, "num_blocks": int(rng.integers(34, 60))}
        for twice, said in same(law_id, options, ((prompt(), 1, {}) for _ in range(120)), 64):
            doubled += twice
            evicted += not isinstance(said, str) and said.ledger.tokens(Cause.EVICTED) > 0
    assert doubled > 500 and evicted > 500


def test_tables_grow_with_the_trace() -> None:
    # Last, of 4,000 blocks: 1,500 each of the third and the fourth prompt, and what is left of the second.
    long = [(np.arange(start, start + 1500), 24_000) for start in (1, 1501, 1, 9000, 1501)]
    said = [said for _, said in same("vllm@0.32", {"num_blocks": 4000}, ((each, 1, {}) for each in long), 16)]
    assert [each.hit_len for each in said if isinstance(each, Expectation)] == [0, 0, 23_984, 0, 16_000]


def test_other_configurations_go_by_blocks() -> None:
    for options in (
        {"enable_prefix_caching": False},
        {"num_speculative_tokens": 1},
        {"groups": ["full:16", "swa:16:40"]},
    ):
        law = make_law("vllm@0.32", options)
        assert law.replay() == law.serve
