"""The harness's side of SGLang's lookup worker: one process, configurations on demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters import torchvision_shim
from adapters.base import EngineSpec
from adapters.environments import python_for
from adapters.lookup_engine import LookupEngine, checked, covered
from adapters.sglang.server import HERE as SERVED
from adapters.sglang_lookup.options import SglangLookupOptions
from adapters.worker import Worker
from vocabulary.engine import EngineFacts, Mode
from vocabulary.errors import RequestRefused, UsageError

INSIDE = Path(__file__).parent / "inside"
VERSIONS = ("0.5.23",)
START_TIMEOUT_S = 300.0
REQUEST_TIMEOUT_S = 300.0
ENVIRONMENT = {
    "PYTHONPATH": f"{INSIDE}:{SERVED / 'shim'}:{torchvision_shim.PATH}",
    "PYTHONSAFEPATH": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}
NOT_OF_THE_RULE = ("schedule_policy",)
"""Options that change no hit of requests sent one by one."""
RESOLVED = (
    "page_size",
    "chunked_prefill_size",
    "max_total_tokens",
    "mamba_radix_cache_strategy",
    "max_mamba_cache_size",
)


def open_sglang(version: str, options: Mapping[str, Any], folder: Path) -> SglangLookup:
    """`adapters.lookup.OpenLookup` of SGLang."""
    if version not in VERSIONS:
        raise UsageError(f"sglang@{version}: no lookup worker for this version; there is {', '.join(VERSIONS)}")
    spec = EngineSpec(
        engine="sglang-lookup", version=version, mode=Mode.WORKER, options=checked(SglangLookupOptions, options)
    )
    return SglangLookup(spec, folder)


class SglangLookup(LookupEngine):
    """SGLang's scheduler in the environment of the served engine."""

    def __init__(self, spec: EngineSpec, folder: Path) -> None:
        """Start in the environment of the served engine, whose packages these are."""
        assert isinstance(spec.options, SglangLookupOptions)
        given = spec.options.given()
        worker = Worker(
            spec.engine,
            [str(python_for(dataclasses.replace(spec, engine="sglang"))), str(INSIDE / "lookup_worker.py")],
            folder=folder,
            environment=ENVIRONMENT | dict(spec.environment),
            start_timeout_s=max(START_TIMEOUT_S, spec.start_timeout_s),
            request_timeout_s=max(REQUEST_TIMEOUT_S, spec.request_timeout_s),
        )
        super().__init__(worker, spec)
        try:
            self.facts = self._configure(given)
        except BaseException:
            self._worker.close()
            raise

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Serve another configuration on an empty cache; UsageError when SGLang refuses it."""
        self.facts = self._configure(checked(SglangLookupOptions, options).given())

    def _configure(self, given: Mapping[str, Any]) -> EngineFacts:
        try:
            raw = self._worker.exchange({"op": "configure", "options": given})["facts"]
        except RequestRefused as error:
            raise UsageError(str(error)) from None
        return self._complete(raw, lambda resolved: law_of(self._spec.version, given, resolved))


def law_of(version: str, given: Mapping[str, Any], resolved: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Law id and options of a configuration; LawDoesNotCover with the reason where there is none."""
    asked = {name: value for name, value in given.items() if name not in NOT_OF_THE_RULE}
    taken = {name: resolved[name] for name in RESOLVED if resolved.get(name) is not None}
    return covered(f"sglang@{version}", lambda: asked | taken)
