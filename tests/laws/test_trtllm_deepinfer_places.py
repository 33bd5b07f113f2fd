"""TensorRT-LLM's and DeepInfer's laws as cache managers: every place they name holds what the prompt needs there.

`HITPARITY_PLACES` is the number of random requests per law and options (30 where it is not set).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from reference_engine.laws.base import Expectation
from reference_engine.laws.registry import make_law
from tests.laws.tagged_memory import TaggedMemory
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover, RequestRefused

REQUESTS = int(os.environ.get("HITPARITY_PLACES", "30"))
RESET_EVERY = 300
V1, V2, DEEPINFER = "tensorrt-llm@v1", "tensorrt-llm@v2", "deepinfer@0.1.0"
TENSORRT_LLM: list[tuple[str, dict[str, Any]]] = [
    (V1, {}),
    (V1, {"enable_partial_reuse": False}),
    (V1, {"copy_on_partial_reuse": False}),
    (V1, {"groups": ["full", "swa:24", "swa:40"]}),
    ("tensorrt-llm@v1-cyclic", {"groups": ["full", "swa:64"]}),
    (V2, {}),
    (V2, {"groups": ["full", "swa:24"]}),
    (V2, {"groups": ["full", "swa:24"], "commit_min_snapshot": True, "sink_token_length": 20, "max_num_tokens": 48}),
    (V2, {"groups": ["full", "swa:24"], "policy": "per_request"}),
    (V2, {"groups": ["full", "gdn"], "periodic_snapshot_interval": 24, "reuse_match_backoff": 2}),
    (V2, {"groups": ["gdn", "full", "swa:24"], "additional_snapshot_offsets_from_end": [0, 3], "max_num_tokens": 40}),
]
WINDOW = {"groups": ["full", "swa:24"], "external_replay": 30}
FORKS: list[dict[str, Any]] = [
    {},
    {"groups": ["full", "swa:24"]},
    {"groups": ["swa:24", "full", "gdn"], "chunked_prefill": True, "chunk_tokens": 50},
]
HITS: list[dict[str, Any]] = [{}, WINDOW, {**WINDOW, "chunked_prefill": True, "chunk_tokens": 70}]


def prompts(rng: random.Random, lengths: Sequence[int]) -> Iterator[TokenRequest]:
    """Prompts that extend, cut and edit earlier ones, in two scopes."""
    known: list[list[int]] = [[0]]
    for number in range(REQUESTS):
        ids = rng.choice(known)
        ids = ids[: rng.choice([len(ids), len(ids), rng.randrange(len(ids) + 1)])]
        ids = [*ids, *(rng.randrange(1000) for _ in range(rng.choice(lengths)))][:300]
        known = [*known[-6:], ids]
        scope = rng.choice([None, None, None, "salt"])
        yield TokenRequest(request_id=str(number), ids=tuple(ids), max_tokens=rng.choice([1, 2, 20]), namespace=scope)


class Crowd:
    """Requests that run at the same time, in random order of their steps."""

    def __init__(self, memory: TaggedMemory, rng: random.Random, most: int) -> None:
        self.memory, self._rng, self._most = memory, rng, most
        self._running: list[Iterator[Expectation]] = []
        self.served = self.hits = 0

    def join(self, request: TokenRequest) -> None:
        """Admit a request when others have made room for it; one that the law refuses leaves nothing behind."""
        output = [self._rng.randrange(1000) for _ in range(request.max_tokens)]
        self.leave(self._most - 1)
        steps = self.memory.steps(request, output)
        try:
            expectation = next(steps)
        except (LawDoesNotCover, RequestRefused):
            self.memory.law.check_integrity()
            return
        self._running.append(steps)
        self.served, self.hits = self.served + 1, self.hits + (expectation.position_start > 0)

    def leave(self, most: int) -> None:
        """Random steps until at most so many are left."""
        while len(self._running) > most:
            steps = self._rng.choice(self._running)
            if next(steps, None) is None:
                self._running.remove(steps)

    def reset(self) -> None:
        """Let all end, and forget them."""
        self.leave(0)
        self.memory.reset()
        self.memory.law.check_integrity()


@pytest.mark.parametrize(("law_id", "options"), TENSORRT_LLM, ids=str)
@pytest.mark.parametrize("together", [1, 4])
def test_tensorrt_llm(law_id: str, options: dict[str, Any], together: int) -> None:
    rng = random.Random(together)
    crowd = Crowd(TaggedMemory(make_law(law_id, {"tokens_per_block": 16, **options})), rng, together)
    for number, request in enumerate(prompts(rng, (1, 7, 15, 16, 17, 50))):
        if number % RESET_EVERY == RESET_EVERY - 1:
            crowd.reset()
        crowd.join(request)
    crowd.reset()
    assert crowd.served > REQUESTS // 2 and crowd.hits > REQUESTS // 8, (crowd.served, crowd.hits)


@pytest.mark.parametrize("options", FORKS, ids=str)
def test_deepinfer_forks(options: dict[str, Any]) -> None:
    """Chats that branch: each turn forks an earlier one, or begins anew; some repeat it, cut it or take its ID."""
    rng = random.Random(1)
    memory = TaggedMemory(make_law(DEEPINFER, options))
    served, hits, turns = 0, 0, list[tuple[str, list[int]]]()
    for number in range(REQUESTS):
        if number % RESET_EVERY == 0:
            memory.reset()
            turns = []
        name, tokens = rng.choice(turns) if turns and rng.random() < 0.8 else (None, [])
        grow = rng.choice([-9, -5, -1, 0, 0, 1, 30, 128, 150]) if tokens else 200
        ids = [*tokens[: len(tokens) + min(grow, 0)], *(rng.randrange(1000) for _ in range(grow))]
        output = [rng.randrange(1000) for _ in range(rng.choice([1, 2, 30, 128]))]
        own = rng.choice([str(number), name or str(number)])
        request = TokenRequest(request_id=own, ids=tuple(ids), max_tokens=len(output), fork_of=name)
        try:
            expectation = memory.serve(request, output)
        except LawDoesNotCover:
            memory.law.check_integrity()
            continue
        served, hits = served + 1, hits + (expectation.position_start > 0)
        turns = [*(turn for turn in turns[-8:] if turn[0] != own), (own, ids + output)]
    assert served > REQUESTS // 3 and hits > REQUESTS // 4, (served, hits)


@pytest.mark.parametrize("options", HITS, ids=str)
def test_deepinfer_injected_hits(options: dict[str, Any]) -> None:
    """A hit is copied from a finished sequence; with a window it is replayed, and nothing before it is seen."""
    rng = random.Random(1)
    crowd = Crowd(TaggedMemory(make_law(DEEPINFER, options)), rng, 3)
    for number, request in enumerate(prompts(rng, (1, 30, 128, 150))):
        if number % RESET_EVERY == RESET_EVERY - 1:
            crowd.reset()
        hit = rng.choice([None, rng.randrange(request.prompt_len)])
        crowd.join(replace(request, external_hit=hit, namespace=None))
    crowd.reset()
    assert crowd.served > REQUESTS // 2 and crowd.hits > REQUESTS // 16, (crowd.served, crowd.hits)


def test_a_hit_that_nothing_holds_is_refused_by_an_engine_and_predicted_without_one() -> None:
    asked = TokenRequest(request_id="a", ids=tuple(range(400)), max_tokens=1, external_hit=300)
    law = make_law(DEEPINFER, WINDOW)
    assert law.send(asked).position_start == 270
    memory = TaggedMemory(make_law(DEEPINFER, WINDOW))
    with pytest.raises(RequestRefused, match="nothing holds its first 270 tokens"):
        memory.serve(asked)
    memory.serve(replace(asked, request_id="b", ids=tuple(range(270)), external_hit=None), [7])
    assert memory.serve(asked, [7]).position_start == 270
    without_replay = TaggedMemory(make_law(DEEPINFER, {"groups": ["full", "swa:24"]}))
    without_replay.serve(replace(asked, request_id="b", external_hit=None), [7])
    with pytest.raises(RequestRefused, match="300 tokens and the window before them"):
        without_replay.serve(asked)
    assert without_replay.serve(replace(asked, external_hit=399), [7]).position_start == 399


def test_a_fork_behind_its_parents_state_is_refused_by_an_engine_and_predicted_without_one() -> None:
    options = {"groups": ["full", "gdn"]}
    parent = TokenRequest(request_id="a", ids=tuple(range(200)), max_tokens=1)
    fork = replace(parent, request_id="b", fork_of="a")
    law = make_law(DEEPINFER, options)
    law.send(parent)
    assert law.send(fork).position_start == 199
    memory = TaggedMemory(make_law(DEEPINFER, options))
    memory.serve(parent, [7])
    with pytest.raises(LawDoesNotCover, match="begins behind 199 of 200 tokens"):
        memory.serve(fork)
    assert memory.serve(replace(fork, ids=(*range(200), 7)), [8]).position_start == 200


def test_consumers_that_are_cut_short_are_only_predicted() -> None:
    law = make_law(DEEPINFER, {"groups": ["full", "swa:128"], "yoco_mode": "compact"})
    assert law.rooms == ()
