"""An SGLang server: by URL, or launched in a process group of its own and stopped without leftovers."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from adapters import torchvision_shim
from adapters.base import EngineSpec
from adapters.environments import python_for
from adapters.http import HttpClient
from adapters.process import EngineProcess, port_for
from adapters.sglang.options import SglangOptions, server_arguments
from adapters.sglang.probe_log import ProbeLog
from checkpoints import Checkpoint
from vocabulary.errors import HitparityError

HERE = Path(__file__).parent
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HITPARITY_FORK": "1",  # plugins/hitparity_fork.py
    # SGLang compiles the rotary embedding of Gemma 3: half a minute in the first request, and a C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
    # Waiting threads sleep. By default they spin, which doubled a prefill's CPU time where cores are shared.
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Defaults of a CPU server's environment; an experiment's own `environment` wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to reach a server; opens one client per thread."""

    url: str
    timeout_s: float
    api_key: str | None = None

    def client(self) -> HttpClient:
        """A client with a connection of its own."""
        return HttpClient("sglang", self.url, timeout_s=self.timeout_s, api_key=self.api_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The process behind a server that hitparity started."""

    process: EngineProcess
    probe: ProbeLog
    device: str
    scratch: TemporaryDirectory[str]
    """SGLang's sockets, which it leaves behind."""

    def stop(self) -> None:
        """End the server and its children; never raises.

        A CPU server is killed at once: it has nothing to release, and on SIGTERM 0.5.23 takes its own
        children's end for a crash and waits 5 s before a diagnosis.
        """
        if self.device == "cpu":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.child.pid, signal.SIGKILL)
        self.process.stop()
        with contextlib.suppress(OSError):
            self.scratch.cleanup()


def launch(spec: EngineSpec, options: SglangOptions, model: Checkpoint, folder: Path) -> tuple[Server, Launched]:
    """Start `python -m sglang.launch_server` and wait until it answers.

    Raises EngineUnavailable with the end of its log when it does not come up; nothing is left running then.
    """
    python, port, log = python_for(spec), port_for(spec), folder / "probe.jsonl"
    log.unlink(missing_ok=True)
    scratch = TemporaryDirectory(prefix="hitparity-sglang-", ignore_cleanup_errors=True)
    environment = {
        "HF_HUB_OFFLINE": "1",  # the model is a folder; nothing is to be looked up
        "SGL_FORCE_SHUTDOWN": "1",  # on SIGTERM, running requests are not waited for: nobody reads them any more
        **(CPU_ENVIRONMENT if spec.device == "cpu" else {}),
        **spec.environment,
        "PYTHONPATH": search_path(spec),
        "HITPARITY_PROBE_LOG": str(log.absolute()),
        "TMPDIR": scratch.name,
    }
    command = [str(python), "-m", "sglang.launch_server", *server_arguments(options, spec, model, port)]
    process = EngineProcess(
        "sglang",
        command,
        log=folder / "engine.log",
        environment=environment,
        stop_timeout_s=spec.stop_timeout_s,
    )
    launched = Launched(process=process, probe=ProbeLog(log), device=spec.device, scratch=scratch)
    server = Server(url=f"http://127.0.0.1:{port}", timeout_s=spec.request_timeout_s)
    client = server.client()
    try:
        process.wait_ready(lambda: process.listens(port) and _answers(client), spec.start_timeout_s)
    except BaseException:
        launched.stop()
        raise
    finally:
        client.close()
    return server, launched


def search_path(spec: EngineSpec) -> str:
    """PYTHONPATH of the server: our plugins, and on a CPU the stand-ins for packages that exist for CUDA only."""
    folders = [HERE / "plugins"]
    if spec.device == "cpu":
        folders += [HERE / "shim", torchvision_shim.PATH]
    inherited = spec.environment.get("PYTHONPATH")
    return ":".join([*map(str, folders), *([inherited] if inherited else [])])


def _answers(client: HttpClient) -> bool:
    """Whether the HTTP server is up; SGLang opens it when the scheduler is ready."""
    try:
        return client.get("/server_info")[0] == 200
    except HitparityError:
        return False
