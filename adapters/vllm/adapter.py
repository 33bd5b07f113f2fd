"""vLLM's entry in the registry: three ways to reach it, and the law that covers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.base import Adapter, EngineSpec
from adapters.environments import python_for
from adapters.vllm.attach import attach
from adapters.vllm.environment import engine_environment
from adapters.vllm.facts import complete_facts
from adapters.vllm.launch import launch
from adapters.vllm.law import law_for
from adapters.vllm.options import VllmOptions, engine_arguments, notes_for
from adapters.worker import Worker, WorkerEngine
from checkpoints import Checkpoint
from vocabulary.engine import Engine, Mode

WORKER = Path(__file__).with_name("worker.py")


class VllmAdapter(Adapter):
    """Position start and prefill steps come from vLLM's scheduler, except from an attached server."""

    name = "vllm"
    modes = (Mode.LAUNCH, Mode.WORKER, Mode.ATTACH)
    default_version = "0.32.0"
    options = VllmOptions

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> Engine:
        """Start or attach to vLLM; see `Adapter.start`."""
        options = spec.options
        assert isinstance(options, VllmOptions)
        if spec.mode is Mode.ATTACH:
            return attach(spec, model)
        if spec.mode is Mode.LAUNCH:
            return launch(spec, options, model, folder)
        python = python_for(spec)
        worker = Worker(
            self.name,
            [str(python), str(WORKER), json.dumps(engine_arguments(options, spec, model))],
            folder=folder,
            # In process, the scheduler is where the worker can reach it.
            environment=engine_environment(spec, options, python) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            start_timeout_s=spec.start_timeout_s,
            request_timeout_s=spec.request_timeout_s,
            stop_timeout_s=spec.stop_timeout_s,
        )
        return WorkerEngine.with_facts(worker, lambda said: complete_facts(said, Mode.WORKER, notes_for(spec, model)))

    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """Laws are known for full attention without speculation, per minor version."""
        return law_for(spec.version, facts_options, groups)
