"""SGLang general plugin: forks the scheduler and the detokenizer in place of spawning them.

A spawned child imports torch, transformers and SGLang again: three times some 16 s of CPU for one server. A
forked one has them; start-up took 19 s of CPU with it and 50 s without (SGLang 0.5.23, two cores). Nothing
else changes: same processes, same code, same requests. For CPU servers only, as CUDA does not survive a fork;
the adapter sets HITPARITY_FORK=1 there, and an experiment can set it to 0.

Assumption (SGLang 0.5.23): at the call of `set_start_method` the server has neither started threads of
its own nor computed anything in parallel.

Runs inside SGLang's own Python, so it imports nothing of ours.
"""

import os
from typing import Any


def register() -> None:
    """Called by SGLang in each of its processes; does nothing unless HITPARITY_FORK is 1."""
    if os.environ.get("HITPARITY_FORK") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("multiprocessing.set_start_method", _fork, HookType.BEFORE)


def _fork(*_arguments: Any, **_options: Any) -> tuple[tuple[str], dict[str, bool]]:
    return ("fork",), {"force": True}
