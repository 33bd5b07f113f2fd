"""The decoder computes what transformers computes on the same checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_engines import difference, prompt, start

from checkpoints import Checkpoint
from vocabulary.engine import TokenRequest

SCRIPT = Path(__file__).with_name("transformers_greedy.py")
LENGTHS = (1, 17, 150)
MAX_TOKENS = 8
TOLERANCE = 1e-5
"""Share of the largest logit; measured 2e-6 (SmolLM2), 1e-6 (tiny models)."""


@pytest.mark.live("vllm")
@pytest.mark.live("reference")
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama", "smollm2-135m"])
def test_greedy_tokens_and_logits_equal_those_of_transformers(
    checkpoint: Callable[[str], Checkpoint], engine_python: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    model = checkpoint(name)
    engine = start(model, compute_dtype="float32")
    prompts = [prompt(engine, length, seed=length) for length in LENGTHS]
    subprocess.run(
        [engine_python("vllm"), SCRIPT, model.directory, tmp_path / "out.npz"],
        input=json.dumps({"prompts": prompts, "max_tokens": MAX_TOKENS}).encode(),
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        check=True,
    )
    theirs = np.load(tmp_path / "out.npz")
    ours = engine.generate(
        [TokenRequest(request_id=str(i), ids=ids, max_tokens=MAX_TOKENS) for i, ids in enumerate(prompts)]
    )
    for number, completion in enumerate(ours):
        assert completion.output_ids == tuple(theirs[f"output{number}"])
        assert difference(completion.first_logits, torch.from_numpy(theirs[f"logits{number}"])) <= TOLERANCE
