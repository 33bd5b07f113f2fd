"""Loads vLLM-Ascend's scheduler-side patches into a vLLM without an NPU; run by the lookup worker before it starts.

vllm_ascend imports torch_npu, which exists for NPU machines only. An empty stand-in is enough: its platform patches
(coordinator, Mamba manager, scheduler) are Python and touch the device only later, in the worker we do not have.
Executed with vllm_ascend 0.23.0, 0.26.0rc1 and 0.30.0rc2. The platform stays CPU, so what `NPUPlatform` would set
in the configuration (block size, cache mode) has to be given as options.
"""

from __future__ import annotations

import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from typing import Any

# Before the stand-in: transformers asks whether torch_npu is there and would then use it.
import torch
import transformers.activations  # type: ignore[import-not-found]  # noqa: F401
import vllm.v1.core.kv_cache_manager
import vllm.v1.engine.core

VERSION = version("vllm-ascend")
DEVICE_TYPE = "A2"
"""Atlas A2; decides kernels only."""


class Empty(types.ModuleType):
    """A module whose every attribute exists: capitalised ones are classes (annotations join them), others modules."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else Empty(f"{self.__name__}.{name}")


def _load() -> None:
    stand_in = Empty("torch_npu")
    stand_in.__spec__ = ModuleSpec("torch_npu", None)
    stand_in.__path__ = []
    sys.modules["torch_npu"] = stand_in
    vars(torch)["npu"] = Empty("torch.npu")
    import vllm_ascend  # type: ignore[import-not-found]

    # Written when the package is built, for the device it is built for.
    build_info = types.ModuleType("vllm_ascend._build_info")
    build_info.__device_type__ = DEVICE_TYPE  # type: ignore[attr-defined]
    sys.modules["vllm_ascend._build_info"] = build_info
    vllm_ascend._build_info = build_info
    importlib.import_module("vllm_ascend.patch.platform")
    factory = vllm.v1.core.kv_cache_manager.get_kv_cache_coordinator
    if not factory.__module__.startswith("vllm_ascend."):
        raise ImportError(f"vllm_ascend {VERSION} left vLLM's own coordinator in place ({factory.__module__})")


_load()
