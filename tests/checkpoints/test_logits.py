"""Both weight files of a folder are one model: transformers and llama.cpp agree on the logits of every position.

transformers 5.19 computes in float32 with eager attention; llama.cpp (llama-cpp-python 0.3.36) with a float32
KV cache and without flash attention.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from checkpoints import Checkpoint
from checkpoints.text import encode

SCRIPTS = Path(__file__).parent / "scripts"
LENGTH = 1038

Logits = npt.NDArray[np.float32]
BothLogits = Callable[[Checkpoint, Sequence[int]], tuple[Logits, Logits]]


@pytest.fixture
def both_logits(engine_python: Callable[[str], Path], tmp_path: Path) -> BothLogits:
    """Model and IDs to the logits `[len(ids), vocab]` of transformers and of llama.cpp."""

    def run(engine: str, script: str, model: Path) -> Logits:
        output = tmp_path / f"{engine}.npy"
        command = [engine_python(engine), SCRIPTS / script, model, tmp_path / "ids.json", output]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        logits: Logits = np.load(output)
        return logits

    def both(model: Checkpoint, ids: Sequence[int]) -> tuple[Logits, Logits]:
        (tmp_path / "ids.json").write_text(json.dumps(list(ids)))
        return (
            run("vllm", "transformers_logits.py", model.directory),
            run("llama-cpp-python", "llama_cpp_logits.py", model.gguf),
        )

    return both


@pytest.mark.live("vllm", "llama-cpp-python")
@pytest.mark.parametrize(
    ("name", "largest", "near_ties"),
    [
        ("tiny-qwen3", 5e-5, 0),
        ("tiny-llama", 5e-5, 0),
        # llama.cpp reads GELU from a float16 table: enough to turn one in a thousand near ties
        ("tiny-gemma3", 4e-3, 3),
        ("tiny-qwen3.5", 3e-4, 0),
    ],
)
def test_tiny_models(
    name: str, largest: float, near_ties: int, checkpoint: Callable[[str], Checkpoint], both_logits: BothLogits
) -> None:
    model = checkpoint(name)
    drawn = np.random.default_rng(1).permutation(model.vocab_size)
    ids = [int(token_id) for token_id in drawn if token_id not in model.reserved_ids][:LENGTH]
    transformers, llama_cpp = both_logits(model, ids)
    assert transformers.shape == llama_cpp.shape == (LENGTH, model.vocab_size)
    assert np.abs(transformers - llama_cpp).max() <= largest
    assert np.count_nonzero(transformers.argmax(1) != llama_cpp.argmax(1)) <= near_ties


@pytest.mark.live("vllm", "llama-cpp-python")
def test_smollm2(checkpoint: Callable[[str], Checkpoint], both_logits: BothLogits) -> None:
    model = checkpoint("smollm2-135m")
    text = (
        "The capital of France is Paris, and the capital of Italy is Rome. Water boils at 100 degrees Celsius at "
        "sea level; on a mountain it boils at a lower temperature, because the pressure of the air is lower there."
    )
    transformers, llama_cpp = both_logits(model, encode(model, text))
    # llama.cpp rounds activations to bfloat16 before it multiplies them with bfloat16 weights
    assert np.abs(transformers - llama_cpp).max() <= 0.5
    assert np.abs(transformers - llama_cpp).mean() <= 0.06
    np.testing.assert_array_equal(transformers.argmax(1), llama_cpp.argmax(1))
