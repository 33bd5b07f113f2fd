"""The reference engine in a worker process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from adapters.base import Adapter, EngineSpec
from adapters.checked import facts_from
from adapters.environments import python_for
from adapters.reference.law import DEFAULT_LAW, sized_law
from adapters.reference.options import ReferenceOptions
from adapters.worker import Worker, WorkerEngine
from checkpoints import Checkpoint
from reference_engine.config import ModelConfig
from reference_engine.laws.registry import LAWS
from vocabulary.engine import Engine, Mode
from vocabulary.errors import UsageError

WORKER = Path(__file__).with_name("worker.py")
DTYPES = ("auto", "float32", "bfloat16")
# Threads that wait for each other by spinning lose whole time slices on a machine that also does something else.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}


def _own_version() -> str:
    """hitparity's version; the engine is part of it."""
    try:
        return metadata.version("hitparity")
    except metadata.PackageNotFoundError:  # a checkout on the path, not installed
        return "source"


class ReferenceAdapter(Adapter):
    """`name = "reference"`, `law = "sglang@0.5.23"`, `law_options = { page_size = 16 }`."""

    name = "reference"
    modes = (Mode.WORKER,)
    default_version = _own_version()
    options = ReferenceOptions

    def check(self, spec: EngineSpec) -> None:
        """The law exists and can be followed, and the number type is one the engine computes in."""
        self._law(spec)
        if spec.dtype not in DTYPES:
            raise UsageError(f"reference: dtype = {spec.dtype!r} is not supported; use one of {', '.join(DTYPES)}")
        if spec.device not in ("cpu", "cuda", "npu"):
            raise UsageError(f"reference: device = {spec.device!r} is not supported; use cpu, cuda or npu")

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> Engine:
        """Load the model in a worker; UsageError for an architecture that the decoder does not implement."""
        self.check(spec)
        law, law_options = self._law(spec, ModelConfig.read(model.directory).groups)
        arguments = spec.options.model_dump(mode="json") | {
            "model": str(model.directory),
            "law": law,
            "law_options": law_options,
            "dtype": spec.dtype,
            "device": spec.device,
        }
        worker = Worker(
            self.name,
            [str(python_for(spec)), "-P", str(WORKER), json.dumps(arguments)],
            folder=folder,
            environment=ENVIRONMENT | dict(spec.environment),
            start_timeout_s=spec.start_timeout_s,
            request_timeout_s=spec.request_timeout_s,
            stop_timeout_s=spec.stop_timeout_s,
        )
        more = {"engine": self.name, "version": self.default_version, "mode": spec.mode, "emulated": True}
        more |= {"law": law, "law_options": law_options}
        return WorkerEngine.with_facts(worker, lambda said: facts_from(said, **more))

    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """The law that the cache manager is."""
        return self._law(spec, groups)

    @staticmethod
    def _law(spec: EngineSpec, groups: tuple[str, ...] = ("full",)) -> tuple[str, dict[str, Any]]:
        options = spec.options
        assert isinstance(options, ReferenceOptions)
        law_id = spec.law or DEFAULT_LAW
        sized = sized_law(law_id, options.law_options, options.pool_tokens, groups)
        if options.num_speculative_tokens and "num_speculative_tokens" in LAWS[law_id].options:
            raise UsageError(
                f"reference: what {law_id} keeps depends on drafts; write num_speculative_tokens in law_options, "
                f'beside method = "mtp"'
            )
        return sized
