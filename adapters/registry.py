"""Engine name to adapter, loaded on first use."""

from __future__ import annotations

import difflib
from importlib import import_module

from adapters.base import Adapter
from vocabulary.errors import UsageError

ADAPTERS = {
    "law": "adapters.law.adapter:LawAdapter",
    "reference": "adapters.reference.adapter:ReferenceAdapter",
    "llama.cpp": "adapters.llama_cpp.adapter:LlamaCppAdapter",
    "llama-cpp-python": "adapters.llama_cpp_python.adapter:LlamaCppPythonAdapter",
    "vllm": "adapters.vllm.adapter:VllmAdapter",
    "sglang": "adapters.sglang.adapter:SglangAdapter",
    "sglang-lookup": "adapters.sglang_lookup.adapter:SglangLookupAdapter",
    "vllm-lookup": "adapters.vllm_lookup.adapter:VllmLookupAdapter",
    "vllm-ascend-lookup": "adapters.vllm_ascend_lookup.adapter:VllmAscendLookupAdapter",
}

TOOLS = {"kernels-cuda": ("kernels_cuda", "3.6.0"), "kernels-ascend": ("kernels_ascend", "3.2.0")}
"""Environments that hold compilers instead of an engine: name to folder and default version."""


def default_version(name: str) -> str:
    """The version of an engine or a tool that hitparity pins; UsageError names the nearest known engine."""
    return TOOLS[name][1] if name in TOOLS else adapter_for(name).default_version


def adapter_for(engine: str) -> Adapter:
    """The adapter of an engine; UsageError names the nearest known one."""
    if engine not in ADAPTERS:
        near = difflib.get_close_matches(engine, ADAPTERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ADAPTERS)}"
        raise UsageError(f"unknown engine {engine!r}; {hint}")
    module, _, attribute = ADAPTERS[engine].partition(":")
    adapter = getattr(import_module(module), attribute)()
    assert isinstance(adapter, Adapter)
    return adapter
