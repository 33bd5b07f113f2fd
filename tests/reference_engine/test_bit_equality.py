"""Warm logits equal cold logits: to the bit on the prefill grid, within the stated tolerance elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from reference_engines import GRID, LAWS, ask, difference, prompt, start

from checkpoints import Checkpoint
from reference_engine.engine import ReferenceEngine
from reference_engine.runner import OFF_GRID_TOLERANCE
from vocabulary.engine import TokenRequest

pytestmark = pytest.mark.live("reference")
DTYPES = ("float32", "bfloat16")
LENGTH = 4 * GRID + 14


def cold_and_warm(engine: ReferenceEngine, hit: int, suffix: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of one prompt without any cache, and after a prompt that shares exactly `hit` tokens."""
    ids = prompt(engine, suffix)
    cold = ask(engine, ids)
    assert cold.hand_over.position_start == 0
    engine.reset()
    ask(engine, (*ids[:hit], (ids[hit] + 1) % engine.config.vocab_size, *ids[hit + 1 :]))
    warm = ask(engine, ids)
    assert warm.hand_over.position_start == warm.expectation.hit_len == hit
    return cold.first_logits, warm.first_logits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("hit", [GRID, 2 * GRID, 4 * GRID])
def test_bit_equal_on_the_grid(checkpoint: Callable[[str], Checkpoint], law: str, dtype: str, hit: int) -> None:
    engine = start(checkpoint("tiny-qwen3"), law=law, compute_dtype=dtype)
    cold, warm = cold_and_warm(engine, hit)
    assert torch.equal(cold, warm)


@pytest.mark.parametrize("threads", [1, 2])
def test_bit_equal_with_the_default_grid(checkpoint: Callable[[str], Checkpoint], threads: int) -> None:
    engine = start(
        checkpoint("tiny-llama"), prefill_grid=256, max_num_batched_tokens=2048, threads=threads, pool_tokens=4096
    )
    cold, warm = cold_and_warm(engine, 1024, 1038)
    assert torch.equal(cold, warm)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-llama"])
@pytest.mark.parametrize("hit", [1, GRID - 1, GRID + 1, 3 * GRID + 17, LENGTH - 1])
def test_within_tolerance_off_the_grid(
    checkpoint: Callable[[str], Checkpoint], model: str, dtype: str, hit: int
) -> None:
    engine = start(checkpoint(model), law="llama.cpp", compute_dtype=dtype)
    cold, warm = cold_and_warm(engine, hit)
    assert difference(warm, cold) <= OFF_GRID_TOLERANCE[getattr(torch, dtype)]


def test_bit_equal_whatever_runs_beside_it(checkpoint: Callable[[str], Checkpoint]) -> None:
    engine = start(checkpoint("tiny-qwen3"))
    ids = prompt(engine, 3 * GRID + 5)
    alone = ask(engine, ids).first_logits
    engine.reset()
    crowd = [
        TokenRequest(request_id=f"r{seed}", ids=prompt(engine, 100 + seed, seed), max_tokens=9) for seed in (1, 2, 3)
    ]
    together = engine.generate([*crowd, TokenRequest(request_id="same", ids=ids)])
    assert torch.equal(together[-1].first_logits, alone)
