"""Environment variables that every vLLM process of ours gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

from adapters import torchvision_shim
from adapters.base import EngineSpec
from adapters.vllm.options import VllmOptions

PROBE = Path(__file__).parent / "probe"
PROBE_FILE_VARIABLE = "HITPARITY_VLLM_PROBE"


def engine_environment(spec: EngineSpec, options: VllmOptions, python: Path) -> dict[str, str]:
    """Probe and shim in front of the engine's modules, no network, nothing of the caller's Python.

    The caller's PYTHONPATH and working folder are kept out: they hold modules with names like `harness`.
    """
    # Without a torchvision to stand in front of, the shim would only make transformers believe that there is one.
    shimmed = spec.device == "cpu" and _has_torchvision(python)
    paths = [PROBE, torchvision_shim.PATH] if shimmed else [PROBE]
    # vLLM 0.32 compiles the ranking of log-probabilities on first use even in eager mode: half a minute on a CPU.
    eager = {"TORCHDYNAMO_DISABLE": "1"} if options.enforce_eager and spec.device == "cpu" else {}
    return {
        "PYTHONPATH": ":".join(map(str, paths)),
        "PYTHONSAFEPATH": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # offers /reset_prefix_cache
        **eager,
        **spec.environment,
    }


def _has_torchvision(python: Path) -> bool:
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('torchvision') is None)"
    return subprocess.run([python, "-P", "-c", code], check=False, stdin=subprocess.DEVNULL, env={}).returncode == 0
