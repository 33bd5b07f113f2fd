"""SGLang general plugin: says which positions each prefill step really computes.

One JSON line per prefill step and request goes to the file named by HITPARITY_PROBE_LOG, before the step runs:

    {"rid", "prompt_len", "prefix_len", "extend_len", "cached_tokens", "first", "last"}

`first` and `last` are read from the position tensor that the forward gets, the others from the
scheduler's request; a step that computes nothing has null for both. SGLang finds the plugin by the entry
point in the `.dist-info` folder beside this file when the folder of both is on PYTHONPATH.

Assumption (SGLang 0.5.23): `ForwardBatch.init_new(batch, ...)` runs once per step in the scheduler
process, and concatenates the requests' positions in the order of `batch.reqs`.

Runs inside SGLang's own Python, so it imports nothing of ours.
"""

import json
import os
from itertools import accumulate
from pathlib import Path
from typing import Any

LOG = "HITPARITY_PROBE_LOG"
TARGET = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new"


def register() -> None:
    """Called by SGLang in each of its processes; does nothing unless HITPARITY_PROBE_LOG is set."""
    if not os.environ.get(LOG):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, _after_init_new, HookType.AFTER)


def _after_init_new(forward: Any, _class: type, batch: Any, *_arguments: Any, **_options: Any) -> None:
    if not forward.forward_mode.is_extend():
        return
    lengths = [int(n) for n in forward.extend_seq_lens_cpu]
    ends = list(accumulate(lengths))
    # Two numbers per request cross from the device, not the tensor: on a GPU this waits for the stream.
    edges = [edge for end, n in zip(ends, lengths, strict=True) if n for edge in (end - n, end - 1)]
    positions = iter(forward.positions[edges].tolist())
    with Path(os.environ[LOG]).open("a", encoding="utf-8") as log:
        for request, length in zip(batch.reqs, lengths, strict=True):
            row = {
                "rid": request.rid,
                "prompt_len": len(request.origin_input_ids),
                "prefix_len": int(request.prefix_len),
                "extend_len": length,
                "cached_tokens": int(request.cached_tokens),
                "first": next(positions) if length else None,
                "last": next(positions) if length else None,
            }
            log.write(json.dumps(row) + "\n")
