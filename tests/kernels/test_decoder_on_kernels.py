"""The Triton kernels inside the whole forward: prefill and decode of a hybrid model, in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from kernel_proofs import ROOT, tool_python

from checkpoints import Checkpoint

SCRIPT = Path(__file__).with_name("interpreted_decoder.py")


def test_a_hybrid_model_computes_the_same_on_interpreted_kernels(checkpoint: Callable[[str], Checkpoint]) -> None:
    done = subprocess.run(
        [tool_python("kernels-cuda"), SCRIPT, checkpoint("tiny-qwen3.5-mtp").directory],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'reference_engine'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) <= 1e-5  # measured 4e-7
