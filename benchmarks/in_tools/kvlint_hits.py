"""Runs in kvlint's environment: hits of each prompt by its vLLM model, without a budget."""

import json
import sys
from pathlib import Path

from kvlint.sim.vllm_blocks import VLLMBlockSimulator

cache = VLLMBlockSimulator(int(sys.argv[2]))
lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
print(json.dumps([cache.feed_tokens(str(i), json.loads(line)).cached_tokens for i, line in enumerate(lines)]))
