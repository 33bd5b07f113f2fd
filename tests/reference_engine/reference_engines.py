"""Reference engines and prompts for tests."""

from __future__ import annotations

import random
from typing import Any

from torch import Tensor

from checkpoints import Checkpoint
from reference_engine.engine import ReferenceEngine
from reference_engine.load import EngineConfig, load_engine
from reference_engine.request import Completion
from vocabulary.engine import TokenRequest

GRID = 64
"""Prefill grid of these tests: small, so that short prompts cross it."""
LAWS = {
    "vllm@0.32": {"block_size": 16},
    "sglang@0.5.23": {"page_size": 16},
    "llama.cpp": {},
}
COUNT = {"vllm@0.32": ("num_blocks", 16), "sglang@0.5.23": ("num_pages", 16), "llama.cpp": ("n_ctx_slot", 1)}


def start(
    model: Checkpoint,
    *,
    law: str = "vllm@0.32",
    law_options: dict[str, Any] | None = None,
    pool_tokens: int = 2048,
    **more: Any,
) -> ReferenceEngine:
    """An engine in this process; `law_options` replaces the pool's size too."""
    name, unit = COUNT[law]
    options = law_options or LAWS[law] | {name: pool_tokens // unit}
    settings = {"prefill_grid": GRID, "max_num_batched_tokens": 512, "max_num_seqs": 8, "threads": 2} | more
    return load_engine(model.directory, EngineConfig(law=law, law_options=options, **settings)).engine


def prompt(engine: ReferenceEngine, length: int, seed: int = 0) -> tuple[int, ...]:
    """Seeded random token IDs."""
    rng = random.Random(seed)
    return tuple(rng.randrange(engine.config.vocab_size) for _ in range(length))


def ask(engine: ReferenceEngine, ids: tuple[int, ...], max_tokens: int = 1) -> Completion:
    """One request on its own."""
    return engine.generate([TokenRequest(request_id="only", ids=ids, max_tokens=max_tokens)])[0]


def difference(one: Tensor, other: Tensor) -> float:
    """Largest difference of two logit vectors, as a share of the largest absolute logit."""
    return float((one - other).abs().max() / other.abs().max())
