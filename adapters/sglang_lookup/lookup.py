"""The harness's side of SGLang's lookup worker: one process, configurations on demand."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adapters import torchvision_shim
from adapters.base import EngineSpec
from adapters.environments import python_for
from adapters.sglang.server import HERE as SERVED
from adapters.sglang_lookup.options import SglangLookupOptions, checked
from adapters.worker import Worker, facts_from
from reference_engine.laws.registry import LAWS, make_law
from vocabulary.engine import EngineFacts, Fidelity, Mode, Reply, TokenRequest
from vocabulary.errors import EngineFailed, LawDoesNotCover, RequestRefused, UsageError

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
RESOLVED = ("page_size", "chunked_prefill_size", "max_total_tokens", "mamba_radix_cache_strategy")


def open_sglang(version: str, options: Mapping[str, Any], folder: Path) -> SglangLookup:
    """`adapters.lookup.OpenLookup` of SGLang."""
    if version not in VERSIONS:
        raise UsageError(f"sglang@{version}: no lookup worker for this version; there is {', '.join(VERSIONS)}")
    spec = EngineSpec(engine="sglang-lookup", version=version, mode=Mode.WORKER, options=checked(options))
    return SglangLookup(spec, folder)


class SglangLookup:
    """`adapters.lookup.Lookup` and `vocabulary.engine.Engine` over one worker."""

    def __init__(self, spec: EngineSpec, folder: Path) -> None:
        """Start in the environment of the served engine, whose packages these are."""
        assert isinstance(spec.options, SglangLookupOptions)
        self._spec = spec
        given = spec.options.given()
        self._worker = Worker(
            spec.engine,
            [str(python_for(dataclasses.replace(spec, engine="sglang"))), str(INSIDE / "lookup_worker.py")],
            folder=folder,
            environment=ENVIRONMENT | dict(spec.environment),
            start_timeout_s=max(START_TIMEOUT_S, spec.start_timeout_s),
            request_timeout_s=max(REQUEST_TIMEOUT_S, spec.request_timeout_s),
        )
        try:
            self.facts = self._configure(given)
        except BaseException:
            self._worker.close()
            raise

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Serve another configuration on an empty cache; UsageError when SGLang refuses it."""
        self.facts = self._configure(checked(options).given())

    def send(self, request: TokenRequest, outputs: Sequence[int] = ()) -> Reply:
        """Serve one request to its end."""
        return self._send([request], [outputs])[0]

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Queue all before the first scheduler step."""
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

    def _configure(self, given: Mapping[str, Any]) -> EngineFacts:
        try:
            raw = self._worker.exchange({"op": "configure", "options": given})["facts"]
        except RequestRefused as error:
            raise UsageError(str(error)) from None
        engine, version = self._spec.engine, self._spec.version
        if raw["version"] != version:
            raise EngineFailed(f"{engine} {version}: the worker runs version {raw['version']}")
        notes = ["the engine's own scheduler and cache code; no model ran", *raw["notes"]]
        law: str | None = None
        law_options: dict[str, Any] = {}
        try:
            law, law_options = law_of(version, given, raw["options"])
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


def law_of(version: str, given: Mapping[str, Any], resolved: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Law id and options of a configuration; LawDoesNotCover with the reason where there is none."""
    law = f"sglang@{version}"
    if law not in LAWS:
        raise LawDoesNotCover(f"no law {law}")
    asked = {name: value for name, value in given.items() if name not in NOT_OF_THE_RULE}
    taken = {name: resolved[name] for name in RESOLVED if resolved.get(name) is not None}
    if resolved.get("max_mamba_cache_size") is not None:
        taken["max_mamba_cache_size"] = resolved["max_mamba_cache_size"]
    options = asked | taken
    try:
        make_law(law, options)
    except UsageError as error:  # an option that the law does not read
        raise LawDoesNotCover(str(error)) from None
    return law, options
