"""The registry's entry: vLLM's lookup in an experiment, on any version whose environment is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.base import Adapter, EngineSpec
from adapters.vllm_lookup.lookup import VllmLookup, law_of
from adapters.vllm_lookup.options import VllmLookupOptions
from checkpoints import Checkpoint
from vocabulary.engine import Engine, Mode


class VllmLookupAdapter(Adapter):
    """Hits, positions and prefill steps without weights; layer groups come from the option `groups`, not the model."""

    name = "vllm-lookup"
    modes = (Mode.WORKER,)
    default_version = "0.32.0"
    options = VllmLookupOptions

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> Engine:
        """Start the worker; of the model only the vocabulary is used, by the workloads."""
        return VllmLookup("vllm", spec, folder)

    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """The law of the version, where it covers the options."""
        return law_of("vllm", spec.version, spec.options.model_dump(exclude_unset=True), facts_options)
