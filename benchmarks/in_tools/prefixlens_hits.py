"""Runs in prefixlens' environment: hits of each prompt by its block tree, with room for everything."""

import json
import sys
from pathlib import Path

from prefixlens.request import Request
from prefixlens.simulator import RadixCacheSimulator

block = int(sys.argv[2])
cache = RadixCacheSimulator(block, 1 << 40)
hits = []
for number, line in enumerate(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()):
    made = cache.process(Request(request_id=str(number), token_ids=tuple(json.loads(line))))
    hits.append(made.cached_prefix_blocks * block)
print(json.dumps(hits))
