"""Lookup fidelity: an engine's own scheduler and cache code, asked without a model forward.

    lookup = open_lookup("vllm@0.30", {"groups": ["full:528", "gdn:528"], "num_speculative_tokens": 1}, folder)
    lookup.send(request)               # hit, start, prefill steps and what each group of layers really holds
    lookup.reconfigure({"groups": ["full:16"]})

One worker process per system and version serves every configuration: starting one takes seconds (imports), changing
the configuration less, a probe milliseconds. Layer groups and options are data, so any hybrid can be asked without
weights. Generated tokens are given by the caller (`outputs`), because the next request may continue them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from vocabulary.engine import EngineFacts, Reply, TokenRequest
from vocabulary.errors import UsageError

LOOKUPS: dict[str, str] = {
    "vllm": "adapters.vllm_lookup.lookup:open_vllm",
    "vllm-ascend": "adapters.vllm_ascend_lookup.lookup:open_vllm_ascend",
    "sglang": "adapters.sglang_lookup.lookup:open_sglang",
    "tensorrt-llm": "adapters.tensorrt_llm_lookup.lookup:open_tensorrt_llm",
}
"""System to `"module:function"`; the function is an `OpenLookup`."""


class Lookup(Protocol):
    """A running lookup worker. Not thread-safe; close it exactly once."""

    facts: EngineFacts
    """Of the configuration in force; fidelity `lookup`."""

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Serve another configuration on an empty cache; LawDoesNotCover or UsageError when the engine refuses it."""
        ...

    def send(self, request: TokenRequest, outputs: Sequence[int] = ()) -> Reply:
        """Serve one request to its end; it generates exactly `outputs`, or `max_tokens` tokens of its own choice."""
        ...

    def reset(self) -> bool:
        """Empty the cache."""
        ...

    def close(self) -> None:
        """End the worker; never raises."""
        ...


class OpenLookup(Protocol):
    """How a system starts its worker."""

    def __call__(self, version: str, options: Mapping[str, Any], folder: Path) -> Lookup:
        """`version` as in law ids ("0.30"); EngineUnavailable, naming the command, when its environment is missing."""
        ...


def open_lookup(law_id: str, options: Mapping[str, Any], folder: Path) -> Lookup:
    """Start the worker of a system and version; `options` are those of its law, `folder` takes its log.

    Raises UsageError where the system has no lookup worker.
    """
    system, _, version = law_id.partition("@")
    if system not in LOOKUPS:
        near = difflib.get_close_matches(system, LOOKUPS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(LOOKUPS)}"
        raise UsageError(f"{law_id}: no lookup worker for {system!r}; {hint}")
    module, _, function = LOOKUPS[system].partition(":")
    opener: OpenLookup = getattr(import_module(module), function)
    return opener(version, options, folder)
