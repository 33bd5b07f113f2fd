"""The harness's side of the lookup worker: one process per system and version, configurations on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters import torchvision_shim
from adapters.base import EngineSpec, Options
from adapters.environments import python_for
from adapters.lookup_engine import LookupEngine, checked, covered
from adapters.vllm_lookup.options import VllmLookupOptions, law_options_of
from adapters.worker import Worker
from reference_engine.laws.registry import LAWS
from vocabulary.engine import EngineFacts, Mode
from vocabulary.errors import RequestRefused, UsageError

INSIDE = Path(__file__).parent / "inside"
VERSIONS = {"0.23": "0.23.0", "0.26": "0.26.0", "0.30": "0.30.0", "0.32": "0.32.0", "0.33": "0.33.0"}
"""Version of a law id to the release that answers for it."""
START_TIMEOUT_S = 600.0
REQUEST_TIMEOUT_S = 300.0
ENVIRONMENT = {
    "PYTHONPATH": f"{INSIDE}:{torchvision_shim.PATH}",
    "PYTHONSAFEPATH": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_PLUGINS": "none",  # no plug-in has this name; unset would load all
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def open_vllm(version: str, options: Mapping[str, Any], folder: Path) -> VllmLookup:
    """`adapters.lookup.OpenLookup` of vLLM."""
    if version not in VERSIONS:
        raise UsageError(f"vllm@{version}: no lookup worker for this version; there are: {', '.join(VERSIONS)}")
    spec = EngineSpec(
        engine="vllm-lookup", version=VERSIONS[version], mode=Mode.WORKER, options=checked(VllmLookupOptions, options)
    )
    return VllmLookup("vllm", spec, folder)


class VllmLookup(LookupEngine):
    """One release of vLLM, or of vLLM-Ascend over it."""

    def __init__(self, system: str, spec: EngineSpec, folder: Path, *, boot: Path | None = None) -> None:
        """`system` names the laws ("vllm"); `boot` is a script that the worker runs before it uses vLLM."""
        self._system = system
        arguments = {"options": _given(spec.options), "boot": None if boot is None else str(boot)}
        worker = Worker(
            spec.engine,
            [str(python_for(spec)), str(INSIDE / "lookup_worker.py"), json.dumps(arguments)],
            folder=folder,
            environment=ENVIRONMENT | dict(spec.environment),
            start_timeout_s=max(START_TIMEOUT_S, spec.start_timeout_s),
            request_timeout_s=max(REQUEST_TIMEOUT_S, spec.request_timeout_s),
        )
        super().__init__(worker, spec)
        try:
            self.facts = self._facts(worker.facts, _given(spec.options))
        except BaseException:
            self._worker.close()
            raise

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Serve another configuration on an empty cache; UsageError when this version cannot."""
        given = _given(checked(type(self._spec.options), options))
        try:
            answer = self._worker.exchange({"op": "configure", "options": given})
        except RequestRefused as error:
            raise UsageError(str(error)) from None
        self.facts = self._facts(answer["facts"], given)

    def _facts(self, raw: Mapping[str, Any], given: Mapping[str, Any]) -> EngineFacts:
        return self._complete(raw, lambda resolved: law_of(self._system, self._spec.version, given, resolved))


def law_of(
    system: str, version: str, given: Mapping[str, Any], resolved: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Law id and options of a configuration; LawDoesNotCover with the reason where there is none."""
    law = f"{system}@{'.'.join(version.split('.')[:2])}"
    return covered(law, lambda: law_options_of(given, resolved, LAWS[law].options))


def _given(options: Options) -> dict[str, Any]:
    return options.model_dump(exclude_unset=True)
