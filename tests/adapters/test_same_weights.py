"""One set of weights, every engine: greedy decoding gives the same token IDs everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.base import EngineSpec
from adapters.registry import adapter_for
from checkpoints import Checkpoint
from vocabulary.engine import TokenRequest
from workloads.source import TokenSource

RUNS_ON = {
    "tiny-qwen3": ("reference", "llama.cpp", "llama-cpp-python", "vllm", "sglang"),
    "tiny-llama": ("reference", "llama.cpp", "llama-cpp-python", "vllm", "sglang"),
    "tiny-gemma3": ("llama.cpp", "llama-cpp-python", "vllm", "sglang"),
    "tiny-qwen3.5": ("llama.cpp", "llama-cpp-python", "vllm"),  # SGLang has no gated-delta-net forward on a CPU
}
MAX_TOKENS = 12


def greedy(spec: EngineSpec, model: Checkpoint, folder: Path) -> tuple[int, ...]:
    """IDs generated behind a random prompt of 200 tokens."""
    ids = TokenSource(11, model.vocab_size, reserved=model.reserved_ids).any(200)
    folder.mkdir()
    engine = adapter_for(spec.engine).start(spec, model, folder)
    try:
        return engine.send(TokenRequest(request_id="greedy", ids=ids, max_tokens=MAX_TOKENS)).output_ids
    finally:
        engine.close()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.live(*engines)) for name, engines in RUNS_ON.items()],
)
def test_greedy_tokens_agree(
    name: str, checkpoint: Callable[[str], Checkpoint], engine_spec: Callable[..., EngineSpec], tmp_path: Path
) -> None:
    model = checkpoint(name)
    said = {engine: greedy(engine_spec(engine), model, tmp_path / engine) for engine in RUNS_ON[name]}
    assert all(len(ids) == MAX_TOKENS for ids in said.values())
    assert len(set(said.values())) == 1, said
