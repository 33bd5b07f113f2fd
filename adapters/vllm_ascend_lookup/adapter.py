"""The registry's entry: vLLM-Ascend's lookup in an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.base import Adapter, EngineSpec
from adapters.vllm_ascend_lookup.lookup import start
from adapters.vllm_lookup.lookup import law_of
from adapters.vllm_lookup.options import VllmLookupOptions
from checkpoints import Checkpoint
from vocabulary.engine import Engine, Mode


class VllmAscendLookupAdapter(Adapter):
    """As `vllm-lookup`; the platform stays CPU, so block sizes and the cache mode come from the options."""

    name = "vllm-ascend-lookup"
    modes = (Mode.WORKER,)
    default_version = "0.30.0rc2"
    options = VllmLookupOptions

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> Engine:
        """Start the worker; of the model only the vocabulary is used, by the workloads."""
        return start(spec, folder)

    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """The law of the version, where it covers the options."""
        return law_of("vllm-ascend", spec.version, spec.options.model_dump(exclude_unset=True), facts_options)
