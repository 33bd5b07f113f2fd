"""The registry's entry: SGLang's lookup in an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.base import Adapter, EngineSpec
from adapters.sglang_lookup.lookup import SglangLookup, law_of
from adapters.sglang_lookup.options import SglangLookupOptions
from checkpoints import Checkpoint
from vocabulary.engine import Engine, Mode


class SglangLookupAdapter(Adapter):
    """Hits, positions and prefill steps without weights; layer groups come from the option `groups`, not the model."""

    name = "sglang-lookup"
    modes = (Mode.WORKER,)
    default_version = "0.5.23"
    options = SglangLookupOptions

    def check(self, spec: EngineSpec) -> None:
        """Page sizes that contradict each other."""
        super().check(spec)
        assert isinstance(spec.options, SglangLookupOptions)
        spec.options.given()

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> Engine:
        """Start the worker; of the model only the vocabulary is used, by the workloads."""
        return SglangLookup(spec, folder)

    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """The law of the version, where it covers the options."""
        assert isinstance(spec.options, SglangLookupOptions)
        return law_of(spec.version, spec.options.given(), facts_options)
