"""The harness's side of TensorRT-LLM's lookup worker. No machine of ours has the package: untested against it.

hitparity cannot build this environment: the package index holds placeholders that fetch the wheel from NVIDIA's own
index, and the manager needs a CUDA context. Where both exist, name the interpreter in $HITPARITY_PYTHON_TENSORRT_LLM.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.base import EngineSpec, Options
from adapters.checked import facts_from
from adapters.environments import python_for
from adapters.worker import Worker
from reference_engine.laws.registry import make_law
from reference_engine.laws.tensorrt_llm.v2 import TrtllmV2
from vocabulary.engine import EngineFacts, Feature, Fidelity, Mode, Reply, TokenRequest
from vocabulary.errors import EngineUnavailable, LawDoesNotCover, UsageError

ENGINE = "tensorrt-llm"
INTERPRETER = "HITPARITY_PYTHON_TENSORRT_LLM"
LAW = "tensorrt-llm@v2"
WORKER = Path(__file__).with_name("worker.py")
TIMEOUT_S = 600.0


def open_tensorrt_llm(version: str, options: Mapping[str, Any], folder: Path) -> TensorrtLookup:
    """`adapters.lookup.OpenLookup`: `version` is "v2", the manager's generation; options are those of its law.

    Raises EngineUnavailable where no interpreter is named, or its package or GPU is missing, and UsageError for V1.
    """
    if version != "v2":
        raise UsageError(
            f"{ENGINE}@{version}: no lookup worker; V1's probe counts whole blocks only, answers 0 for windows, and so "
            f"is not what admission finds. Ask {LAW}"
        )
    settings = _settings(options)
    interpreter = os.environ.get(INTERPRETER)
    if not interpreter:
        raise EngineUnavailable(
            f"{ENGINE}: no environment can be built for it here; on a machine with an NVIDIA GPU and the "
            f"tensorrt_llm package (1.4 line) set {INTERPRETER} to that environment's python"
        )
    return TensorrtLookup(Path(interpreter), settings, options, folder)


class TensorrtLookup:
    """`adapters.lookup.Lookup` over one worker."""

    def __init__(
        self, interpreter: Path, settings: Mapping[str, Any], options: Mapping[str, Any], folder: Path
    ) -> None:
        spec = EngineSpec(engine=ENGINE, version="v2", mode=Mode.WORKER, options=Options(), python=interpreter)
        self._worker = Worker(
            ENGINE,
            [str(python_for(spec)), str(WORKER), json.dumps(settings)],
            folder=folder,
            environment={"PYTHONSAFEPATH": "1"},
            start_timeout_s=TIMEOUT_S,
            request_timeout_s=TIMEOUT_S,
        )
        self.facts = _facts(self._worker.facts, options)

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Another manager, empty."""
        answer = self._worker.exchange({"op": "configure", "settings": _settings(options)})
        self.facts = _facts(answer["facts"], options)

    def send(self, request: TokenRequest, outputs: Sequence[int] = ()) -> Reply:
        """Probe, admit and commit one prompt; `outputs` change nothing, for generated tokens are never committed."""
        if request.features & {Feature.PROMPT_LOGPROBS, Feature.SKIP_LOOKUP}:
            raise LawDoesNotCover(f"{ENGINE}: the worker has no features {', '.join(sorted(request.features))}")
        message = {
            "op": "send",
            "requests": [
                {
                    "request_id": request.request_id,
                    "ids": list(request.ids),
                    "outputs": list(outputs),
                    "namespace": request.namespace,
                    "lora": request.lora,
                }
            ],
        }
        return self._worker.replies(message, [request])[0]

    def reset(self) -> bool:
        """Empty the cache."""
        return self._worker.reset()

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the worker builds its manager from; refuses what the law refuses."""
    law = make_law(LAW, options)
    assert isinstance(law, TrtllmV2)
    settings = law.settings
    return {
        "groups": list(options.get("groups", ("full",))),
        "tokens_per_block": settings.tokens_per_block,
        "enable_block_reuse": settings.enable_block_reuse,
        "enable_partial_reuse": settings.enable_partial_reuse,
        "reuse_match_backoff": settings.reuse_match_backoff,
        "commit_min_snapshot": settings.window_only,
        "commit_at_end_only": settings.commit_at_end_only,
        "periodic_snapshot_interval": settings.periodic_snapshot_interval,
        "offsets_from_start": list(settings.offsets_from_start),
        "offsets_from_end": list(settings.offsets_from_end),
        "sink_token_length": options.get("sink_token_length", 0),
        "chunk_tokens": settings.chunk_tokens,
    }


def _facts(raw: Mapping[str, Any], options: Mapping[str, Any]) -> EngineFacts:
    return facts_from(
        raw,
        engine=ENGINE,
        mode=Mode.WORKER,
        fidelity=Fidelity.LOOKUP,
        law=LAW,
        law_options=dict(options),
        can_salt=True,
        notes=["the engine's own cache manager, no model; this worker was never run by hitparity's authors"],
    )
