"""Run with Triton's Python: the decoder on interpreted kernels and on torch's operators; prints how far logits differ.

interpreted_decoder.py MODEL_DIR ; `tests/reference_engine` must be on the path.
"""

import json
import sys
from pathlib import Path

# before torch: it tells Triton to interpret
from reference_engine.kernels.proofs.interpreter import ONE_EACH  # isort: skip

from small_memory import Sequential

from reference_engine.kernel_backend import KernelBackend
from reference_engine.kernels.interface import TritonKernels

IDS = list(range(300, 320))
runs = [
    Sequential(Path(sys.argv[1]), backend, ["full:16", "gdn"], slots=32).run(IDS, (18, 19, 20))[0]
    for backend in (KernelBackend(TritonKernels(ONE_EACH)), "fused")
]
json.dump(float((runs[0] - runs[1]).abs().max() / runs[1].abs().max()), sys.stdout)
