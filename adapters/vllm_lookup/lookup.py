"""The harness's side of the lookup worker: one process per system and version, configurations on demand."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adapters import torchvision_shim
from adapters.base import EngineSpec, Options
from adapters.environments import python_for
from adapters.vllm_lookup.options import VllmLookupOptions, checked, law_options_of
from adapters.worker import Worker, facts_from
from reference_engine.laws.registry import LAWS, make_law
from vocabulary.engine import EngineFacts, Fidelity, Mode, Reply, TokenRequest
from vocabulary.errors import EngineFailed, LawDoesNotCover, RequestRefused, UsageError

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


class VllmLookup:
    """`adapters.lookup.Lookup` and `vocabulary.engine.Engine` over one worker."""

    def __init__(self, system: str, spec: EngineSpec, folder: Path, *, boot: Path | None = None) -> None:
        """`system` names the laws ("vllm"); `boot` is a script that the worker runs before it uses vLLM."""
        self._system, self._spec = system, spec
        arguments = {"options": _given(spec.options), "boot": None if boot is None else str(boot)}
        self._worker = Worker(
            spec.engine,
            [str(python_for(spec)), str(INSIDE / "lookup_worker.py"), json.dumps(arguments)],
            folder=folder,
            environment=ENVIRONMENT | dict(spec.environment),
            start_timeout_s=max(START_TIMEOUT_S, spec.start_timeout_s),
            request_timeout_s=max(REQUEST_TIMEOUT_S, spec.request_timeout_s),
        )
        try:
            self.facts = self._complete(self._worker.facts, _given(spec.options))
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
        self.facts = self._complete(answer["facts"], given)

    def send(self, request: TokenRequest, outputs: Sequence[int] = ()) -> Reply:
        """Serve one request to its end."""
        return self._send([request], [outputs])[0]

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Submit all before the first scheduler step."""
        return self._send(requests, [()] * len(requests))

    def reset(self) -> bool:
        """Empty the cache."""
        return self._worker.reset()

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _send(self, requests: Sequence[TokenRequest], outputs: Sequence[Sequence[int]]) -> list[Reply]:
        message = {
            "op": "send",
            "requests": [
                {
                    "request_id": request.request_id,
                    # A prompt of thousands of IDs takes longer as JSON numbers than the lookup does.
                    "ids": base64.b64encode(np.asarray(request.ids, "<u4").tobytes()).decode(),
                    "outputs": [int(each) for each in generated],
                    "max_tokens": request.max_tokens,
                    "namespace": request.namespace,
                    "lora": request.lora,
                    "features": sorted(request.features),
                }
                for request, generated in zip(requests, outputs, strict=True)
            ],
        }
        return self._worker.replies(message, requests)

    def _complete(self, raw: Mapping[str, Any], given: Mapping[str, Any]) -> EngineFacts:
        engine, version = self._spec.engine, self._spec.version
        if raw["version"] != version:
            raise EngineFailed(f"{engine} {version}: the worker runs version {raw['version']}")
        notes = ["the engine's own scheduler and cache code; no model ran"]
        law: str | None = None
        law_options: dict[str, Any] = {}
        try:
            law, law_options = law_of(self._system, version, given, raw["options"])
        except LawDoesNotCover as error:
            notes.append(str(error))
        return facts_from(
            raw,
            engine=engine,
            mode=Mode.WORKER,
            fidelity=Fidelity.LOOKUP,
            notes=notes,
            law=law,
            law_options=law_options,
        )


def law_of(
    system: str, version: str, given: Mapping[str, Any], resolved: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Law id and options of a configuration; LawDoesNotCover with the reason where there is none."""
    law = f"{system}@{'.'.join(version.split('.')[:2])}"
    if law not in LAWS:
        raise LawDoesNotCover(f"no law {law}")
    options = law_options_of(given, resolved, LAWS[law].options)
    try:
        make_law(law, options)
    except UsageError as error:  # an option that the law does not read
        raise LawDoesNotCover(str(error)) from None
    return law, options


def _given(options: Options) -> dict[str, Any]:
    return options.model_dump(exclude_unset=True)
