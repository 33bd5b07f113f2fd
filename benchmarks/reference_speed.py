"""Where the reference engine's time goes: SmolLM2, cold prompts and 14-token tails behind a hit, beside the matrix
products alone.

`products_ms` runs nothing but the model's own matrix products on rows of the same calls: what is left when everything
else is free on this machine. `share` of a part is its time of operators in torch's profiler over that of all operators.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch

from checkpoints.make import ensure
from reference_engine.engine import ReferenceEngine
from reference_engine.linear import Linear
from reference_engine.load import EngineConfig, Loaded, load_engine
from reference_engine.runner import grid_calls
from vocabulary.engine import TokenRequest

TAIL = 14
ROUNDS = 4
PARTS = {
    "linear": "products",
    "mm": "products",
    "attention": "attention",
    "rms_norm": "norms",
    "cat": "rotary and copies",
    "mul": "rotary and copies",
    "add": "rotary and copies",
    "sub": "rotary and copies",
    "copy": "rotary and copies",
    "index": "rotary and copies",
    "silu": "activation",
}
"""First match in an operator's name decides its part."""


def measure() -> list[dict[str, object]]:
    """Medians in milliseconds for 1,024 and 2,048 shared tokens."""
    loaded = load_engine(
        ensure("smollm2-135m").directory,
        EngineConfig(law="vllm@0.32", law_options={"block_size": 16, "num_blocks": 512}, max_num_batched_tokens=4096),
    )
    return [row for shared in (1024, 2048) for row in _rows(loaded, shared)]


def _rows(loaded: Loaded, shared: int) -> list[dict[str, object]]:
    engine, rng = loaded.engine, random.Random(shared)
    prefix = [rng.randrange(engine.config.vocab_size) for _ in range(shared)]
    cold, warm, products = [], [], []
    for _ in range(ROUNDS):
        tails = [[rng.randrange(engine.config.vocab_size) for _ in range(TAIL)] for _ in range(2)]
        engine.reset()
        cold.append(_ttft(engine, prefix + tails[0], 0))
        warm.append(_ttft(engine, prefix + tails[1], shared))
        products.append((_products(engine, 0, shared + TAIL), _products(engine, shared, shared + TAIL)))
    del cold[0], warm[0], products[0]  # memory is mapped and kernels are chosen
    rows = []
    for state, times, at in (("cold", cold, 0), ("warm", warm, 1)):
        alone, taken = statistics.median(each[at] for each in products), statistics.median(times)
        prompt = prefix + [rng.randrange(engine.config.vocab_size) for _ in range(TAIL)]
        if state == "cold":
            engine.reset()
        rows.append(
            {
                "state": state,
                "prompt_len": shared + TAIL,
                "compute_dtype": str(loaded.types.compute).removeprefix("torch."),
                "ttft_ms": round(taken, 1),
                "products_ms": round(alone, 1),
                "products_over_ttft": round(alone / taken, 2),
                **{f"share_{part}": share for part, share in _shares(partial(_ttft, engine, prompt, None)).items()},
            }
        )
    return rows


def _ttft(engine: ReferenceEngine, ids: list[int], hit: int | None) -> float:
    begin = time.monotonic_ns()
    done = engine.generate([TokenRequest(request_id="one", ids=tuple(ids))])[0]
    assert hit is None or done.expectation.hit_len == hit, (done.expectation.hit_len, hit)
    return (done.first_token_ns - begin) / 1e6


def _products(engine: ReferenceEngine, start: int, end: int) -> float:
    """All matrix products of a prefill of `[start, end)`, call by call, on rows of ones."""
    weights, runner = engine.runner.decoder.weights, engine.runner
    begin = time.monotonic_ns()
    with torch.inference_mode():
        for first, stop in grid_calls(start, end, runner.prefill_grid):
            for linear in (linear for layer in weights.layers for linear in _matrices(layer)):
                linear(torch.ones(stop - first, linear.width, dtype=weights.embedding.dtype))
        weights.head(torch.ones(1, weights.head.width, dtype=weights.embedding.dtype))
    return (time.monotonic_ns() - begin) / 1e6


def _matrices(layer: object) -> list[Linear]:
    """The matrices of a layer, wherever its dataclasses keep them."""
    found: list[Linear] = []
    for name in getattr(layer, "__slots__", ()):
        value = getattr(layer, name)
        found += [value] if isinstance(value, Linear) else _matrices(value)
    return found


def _shares(run: Callable[[], object]) -> dict[str, float]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    times: Counter[str] = Counter()
    for event in profile.key_averages():
        part = next((part for text, part in PARTS.items() if text in event.key), "other")
        times[part] += event.self_cpu_time_total
    total = sum(times.values())
    return {part: round(spent / total, 2) for part, spent in sorted(times.items())}
