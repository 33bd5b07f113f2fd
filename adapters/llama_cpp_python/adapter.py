"""llama-cpp-python in a worker process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.base import Adapter, EngineSpec
from adapters.checked import facts_from
from adapters.environments import python_for
from adapters.llama_cpp.groups import groups_of
from adapters.llama_cpp.kv_types import kv_type
from adapters.llama_cpp_python.options import LlamaCppPythonOptions
from adapters.worker import Worker, WorkerEngine
from checkpoints import Checkpoint
from vocabulary.engine import Engine, EngineFacts, Mode
from vocabulary.errors import EngineUnavailable, UsageError

LAW = "llama-cpp-python@0.3"
READ = ("n_ctx", "n_batch", "n_ubatch", "swa_full")
WORKER = Path(__file__).with_name("worker.py")
ALL_LAYERS = -1
NOTES = (
    "no batching: requests sent together run one after the other",
    "hit and position start have one source, the batches of llama_decode; the package reports no hit",
)


class LlamaCppPythonAdapter(Adapter):
    """`llama_cpp.Llama.generate`, one sequence, one context."""

    name = "llama-cpp-python"
    modes = (Mode.WORKER,)
    default_version = "0.3.36"
    options = LlamaCppPythonOptions

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> Engine:
        """Start the worker and wait until it has loaded the GGUF."""
        options = _options(spec)
        if spec.dtype not in ("auto", model.dtype):
            raise UsageError(
                f"{self.name}: {model.gguf} holds {model.dtype} and llama.cpp does not convert it to {spec.dtype}; "
                f'leave dtype at "auto" or make the model in {spec.dtype}'
            )
        arguments = options.model_dump(mode="json") | {
            "model_path": str(model.gguf),
            "n_threads_batch": options.n_threads,
            "n_gpu_layers": 0 if spec.device == "cpu" else ALL_LAYERS,
            "type_k": kv_type(options.type_k, model.dtype),
            "type_v": kv_type(options.type_v, model.dtype),
        }
        worker = Worker(
            self.name,
            [str(python_for(spec)), str(WORKER), json.dumps(arguments)],
            folder=folder,
            environment=spec.environment,
            start_timeout_s=spec.start_timeout_s,
            request_timeout_s=spec.request_timeout_s,
            stop_timeout_s=spec.stop_timeout_s,
        )
        return WorkerEngine.with_facts(worker, lambda said: self._facts(said, spec, model))

    def _facts(self, said: Mapping[str, Any], spec: EngineSpec, model: Checkpoint) -> EngineFacts:
        groups = groups_of(model)
        more = {
            "engine": self.name,
            "mode": spec.mode,
            "device": spec.device,
            "granule": 1,
            "groups": groups,
            "caps_last_token": False,
            "notes": list(NOTES),
        }
        facts = facts_from(said, **more)
        if (facts.vocab_size, facts.dtype) != (model.vocab_size, model.dtype):
            raise EngineUnavailable(
                f"{self.name}: loaded {facts.vocab_size} tokens in {facts.dtype} from {model.gguf}, but its folder "
                f"says {model.vocab_size} in {model.dtype}; make the folder again with `hitparity model make`"
            )
        law, law_options = self.law_for(spec, facts.options, groups)
        return dataclasses.replace(facts, law=law, law_options=law_options)

    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """The law of one context; it covers every memory, hits on window caches with holes included."""
        known = _options(spec).model_dump() | dict(facts_options)
        return LAW, {"groups": list(groups)} | {name: known[name] for name in READ}


def _options(spec: EngineSpec) -> LlamaCppPythonOptions:
    assert isinstance(spec.options, LlamaCppPythonOptions)
    return spec.options
