"""Speaks to a vLLM server that the user runs; what it shows of itself is less than what a probe sees."""

from __future__ import annotations

import re
from typing import Any

from adapters.base import EngineSpec
from adapters.exposure import api_key
from adapters.http import HttpClient
from adapters.vllm.facts import complete_facts
from adapters.vllm.server import VllmServer
from checkpoints import Checkpoint
from vocabulary.engine import Mode
from vocabulary.errors import EngineFailed, EngineUnavailable, UsageError

UNKNOWN = "unknown"
FULL_ATTENTION = ("llama", "qwen3")
"""Architectures of checkpoints all of whose layers attend to everything."""


def attach(spec: EngineSpec, model: Checkpoint) -> VllmServer:
    """Read the server's facts; EngineUnavailable when nothing usable answers at the URL."""
    if spec.url is None:
        raise UsageError(f"{spec.engine}: attach mode needs the server's url")
    key = api_key(spec)

    def connect() -> HttpClient:
        return HttpClient(spec.engine, spec.url or "", timeout_s=spec.request_timeout_s, api_key=key)

    client = connect()
    try:
        served = client.get_json("/v1/models")["data"][0]
        options = _options(client.get("/metrics")[1].decode("utf-8", errors="replace"))
        version = client.get_json("/version")["version"]
        block_size, context_len = options["block_size"], served["max_model_len"]
    except (EngineFailed, LookupError, TypeError) as error:
        raise EngineUnavailable(f"{spec.engine}: {spec.url} does not answer like a vLLM server: {error}") from None
    finally:
        client.close()
    full = model.architecture in FULL_ATTENTION
    raw = {
        "engine": spec.engine,
        "version": version,
        "device": UNKNOWN,
        "dtype": UNKNOWN,
        "granule": block_size,
        "groups": ("full",) if full else (),
        "context_len": context_len,
        "vocab_size": model.vocab_size,
        "can_salt": True,
        "options": options,
    }
    notes = ["attached: the server shows neither its device, its dtype nor where computation starts"]
    if full:
        notes.append("layer groups and vocabulary are those of the model folder, not read from the server")
    return VllmServer(complete_facts(raw, Mode.ATTACH, tuple(notes)), connect, served_name=served["id"])


def _options(metrics: str) -> dict[str, Any]:
    """Labels of the metric `vllm:cache_config_info`, numbers and booleans as such, and whether it speculates."""
    line = next((line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{")), "")
    options = {name: _value(text) for name, text in re.findall(r'(\w+)="([^"]*)"', line)}
    # These counters exist only in a server that speculates; the method has no metric.
    return options | {"speculative_method": UNKNOWN if "vllm:spec_decode_" in metrics else None}


def _value(text: str) -> Any:
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    return int(text) if re.fullmatch(r"-?\d+", text) else text
