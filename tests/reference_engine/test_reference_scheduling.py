"""Chunked prefill, batched decode and many requests in a small pool: the answers stay those of one request alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from reference_engines import GRID, LAWS, ask, difference, prompt, start

from checkpoints import Checkpoint
from reference_engine.engine import ReferenceEngine
from reference_engine.runner import OFF_GRID_TOLERANCE
from vocabulary.engine import TokenRequest
from vocabulary.errors import RequestRefused

pytestmark = pytest.mark.live("reference")


def checked(engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch, budget: int) -> list[int]:
    """Check the law's books after each step and every step's size; returns the list that the sizes go to."""
    step, schedule, sizes = engine.step, engine._scheduler.schedule, []

    def measured() -> object:
        plan = schedule()
        sizes.append(sum(prefill.end - prefill.start for prefill in plan.prefills) + len(plan.decodes))
        assert 0 < sizes[-1] <= budget
        return plan

    def stepped() -> None:
        step()
        engine.law.check_integrity()

    monkeypatch.setattr(engine._scheduler, "schedule", measured)
    monkeypatch.setattr(engine, "step", stepped)
    return sizes


def workload(engine: ReferenceEngine, count: int, seed: int) -> list[TokenRequest]:
    """Requests that share random parts of a few prefixes and end differently."""
    rng = random.Random(seed)
    stems = [prompt(engine, 300, stem) for stem in range(3)]
    return [
        TokenRequest(
            request_id=f"r{i}",
            ids=(*rng.choice(stems)[: rng.randrange(1, 300)], *prompt(engine, rng.randrange(1, 40), 100 + i)),
            max_tokens=rng.randrange(1, 7),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("law", LAWS)
def test_many_requests_in_a_small_pool(
    checkpoint: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch, law: str
) -> None:
    model = checkpoint("tiny-qwen3")
    engine = start(model, law=law, pool_tokens=768, max_num_batched_tokens=GRID + 8, threads=1)
    options = {"block_size": 16, "num_blocks": 48, "enable_prefix_caching": False}
    without_reuse = start(model, law_options=options, threads=1)  # torch's threads are the whole process's
    sizes = checked(engine, monkeypatch, GRID + 8)
    hits = 0
    for seed in range(3):
        requests = workload(engine, 20, seed)
        for request, completion in zip(requests, engine.generate(requests), strict=True):
            expected = ask(without_reuse, request.ids, request.max_tokens)
            assert expected.hand_over.hit_len == 0
            assert completion.output_ids == expected.output_ids
            assert difference(completion.first_logits, expected.first_logits) <= OFF_GRID_TOLERANCE[torch.float32]
            assert completion.hand_over.position_start == completion.expectation.position_start
            spans = completion.steps
            assert spans[0][0] == completion.hand_over.position_start and spans[-1][1] == request.prompt_len
            assert all(a[1] == b[0] and a[1] % GRID == 0 for a, b in pairwise(spans))
            hits += completion.hand_over.hit_len
    assert hits > 0, "the workload reused nothing, so it tested nothing"
    assert max(sizes) > GRID


def test_chunked_prefill_equals_one_step(checkpoint: Callable[[str], Checkpoint]) -> None:
    model = checkpoint("tiny-llama")
    chunked = start(model, max_num_batched_tokens=GRID + 8)
    whole = start(model, prefill_grid=512, max_num_batched_tokens=1024)
    ids = prompt(whole, 500)
    small, large = ask(chunked, ids, 4), ask(whole, ids, 4)
    assert len(small.steps) == -(-500 // GRID) and large.steps == ((0, 500),)
    assert small.output_ids == large.output_ids
    assert difference(small.first_logits, large.first_logits) <= OFF_GRID_TOLERANCE[torch.float32]


def test_the_budget_does_not_move_a_bit(checkpoint: Callable[[str], Checkpoint]) -> None:
    model = checkpoint("tiny-qwen3")
    engines = [start(model, max_num_batched_tokens=budget) for budget in (GRID + 8, 3 * GRID, 2048)]
    first, *others = [ask(engine, prompt(engine, 330)).first_logits for engine in engines]
    assert all(torch.equal(first, other) for other in others)


def test_decoding_together_equals_decoding_alone(
    checkpoint: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(checkpoint("tiny-qwen3"))
    batches: list[int] = []
    decode = engine.runner.decode
    monkeypatch.setattr(engine.runner, "decode", lambda leases: (batches.append(len(leases)), decode(leases))[1])
    requests = [
        TokenRequest(request_id=f"r{i}", ids=prompt(engine, 20 + 31 * i, i), max_tokens=12 - i) for i in range(5)
    ]
    together = engine.generate(requests)
    assert max(batches) == 5
    for request, completion in zip(requests, together, strict=True):
        engine.reset()
        assert completion.output_ids == ask(engine, request.ids, request.max_tokens).output_ids


def test_a_request_waits_for_room(checkpoint: Callable[[str], Checkpoint]) -> None:
    engine = start(checkpoint("tiny-qwen3"), pool_tokens=256, max_num_batched_tokens=512)
    first, second = engine.generate(
        [TokenRequest(request_id=name, ids=prompt(engine, 150, i), max_tokens=3) for i, name in enumerate("ab")]
    )
    assert second.first_token_ns > first.done_ns


@pytest.mark.parametrize(
    ("ids", "max_tokens", "why"),
    [
        ((), 1, "empty"),
        ((1, 2, 10**6), 1, "outside the vocabulary"),
        ((-1,), 1, "outside the vocabulary"),
        ((1,) * 40000, 1, "context"),
        ((1,) * 2048, 1, "pool_tokens"),
        ((1,), 0, "max_tokens"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_the_engine_goes_on(
    checkpoint: Callable[[str], Checkpoint], ids: tuple[int, ...], max_tokens: int, why: str
) -> None:
    engine = start(checkpoint("tiny-qwen3"))
    good = TokenRequest(request_id="good", ids=(1, 2, 3))
    with pytest.raises(RequestRefused, match=why):
        engine.generate([good, TokenRequest(request_id="bad", ids=ids, max_tokens=max_tokens)])
    engine.law.check_integrity()
    assert ask(engine, good.ids).hand_over.hit_len == 0
    engine.reset()


def test_too_long_for_one_slot_is_refused(checkpoint: Callable[[str], Checkpoint]) -> None:
    engine = start(checkpoint("tiny-qwen3"), law="llama.cpp", law_options={"n_parallel": 2, "n_ctx_slot": 128})
    with pytest.raises(RequestRefused, match="slot of 128"):
        ask(engine, prompt(engine, 200))
    assert ask(engine, prompt(engine, 100)).hand_over.hit_len == 0
