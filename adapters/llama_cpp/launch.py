"""Start a llama-server on loopback: the xllamacpp wheel's in a child, or an executable the user names."""

from __future__ import annotations

import importlib.metadata
import json
import select
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.base import EngineSpec
from adapters.environments import python_for
from adapters.http import HttpClient
from adapters.llama_cpp.kv_types import kv_type
from adapters.llama_cpp.options import LlamaCppOptions
from adapters.process import EngineProcess, port_for
from checkpoints import Checkpoint
from vocabulary.errors import EngineFailed, EngineUnavailable

HOST = Path(__file__).with_name("host.py")
ALL_LAYERS = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A server that answers."""

    process: EngineProcess
    url: str
    version: str | None
    """Of the xllamacpp wheel; None for an executable, which reports its own build."""
    how: str
    """What was started, for the facts."""


def launch(spec: EngineSpec, options: LlamaCppOptions, model: Checkpoint, folder: Path) -> Launched:
    """Start the server; EngineUnavailable with the end of its log when it does not come up."""
    port = port_for(spec)
    (folder / "slots").mkdir(exist_ok=True)
    if spec.binary is not None:
        return _launch_binary(spec, options, model, folder, spec.binary, port)
    if spec.device != "cpu" and spec.python is None:
        raise EngineUnavailable(
            f"{spec.engine}: the xllamacpp wheel of the package index runs on the CPU only, not on {spec.device!r}; "
            f'name a llama-server built for it (binary = "...") or an environment (python = "...")'
        )
    return _launch_wheel(spec, options, model, folder, port)


def wheel_python(spec: EngineSpec) -> tuple[Path, str]:
    """Interpreter that has xllamacpp, and whose it is: the one named, the harness's own, or the environment's."""
    if spec.python is None:
        try:
            if importlib.metadata.version("xllamacpp") == spec.version:
                return Path(sys.executable), "hitparity's own environment"
        except importlib.metadata.PackageNotFoundError:
            pass
    return python_for(spec), "named environment" if spec.python else "built environment"


def _launch_wheel(spec: EngineSpec, options: LlamaCppOptions, model: Checkpoint, folder: Path, port: int) -> Launched:
    python, whose = wheel_python(spec)
    command = [str(python), str(HOST), json.dumps(_params(spec, options, model, folder, port))]
    process = _started(spec, command, folder, pipes=True)
    hello = bytearray()

    def ready() -> bool:
        while b"\n" not in hello and select.select([process.stdout], [], [], 0)[0]:
            data = process.stdout.read1(4096)  # type: ignore[attr-defined]
            if not data:
                return False
            hello.extend(data)
        return b"\n" in hello

    _wait(process, ready, spec.start_timeout_s)
    said = json.loads(hello)
    return Launched(
        process=process, url=said["address"], version=said["version"], how=f"xllamacpp {said['version']} from {whose}"
    )


def _launch_binary(
    spec: EngineSpec, options: LlamaCppOptions, model: Checkpoint, folder: Path, binary: Path, port: int
) -> Launched:
    process = _started(spec, [str(binary), *_flags(spec, options, model, folder, port)], folder, pipes=False)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        if not process.listens(port):
            return False
        client = HttpClient(spec.engine, url, timeout_s=5)
        try:
            return client.get("/health")[0] == 200
        except EngineFailed:
            return False
        finally:
            client.close()

    _wait(process, ready, spec.start_timeout_s)
    return Launched(process=process, url=url, version=None, how=str(binary))


def _started(spec: EngineSpec, command: Sequence[str], folder: Path, *, pipes: bool) -> EngineProcess:
    return EngineProcess(
        spec.engine,
        command,
        log=folder / "engine.log",
        environment=spec.environment,
        pipes=pipes,
        stop_timeout_s=spec.stop_timeout_s,
    )


def _wait(process: EngineProcess, ready: Any, timeout_s: float) -> None:
    try:
        process.wait_ready(ready, timeout_s)
    except BaseException:
        process.stop()
        raise


def _params(spec: EngineSpec, options: LlamaCppOptions, model: Checkpoint, folder: Path, port: int) -> dict[str, Any]:
    """Attributes of xllamacpp.CommonParams."""
    type_k, type_v = (kv_type(kind, model.dtype) for kind in (options.type_k, options.type_v))
    threads = -1 if options.n_threads is None else options.n_threads
    attention = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[options.flash_attn]
    same = (
        "n_ctx", "n_parallel", "cache_ram_mib", "cache_idle_slots", "n_cache_reuse", "n_ctx_checkpoints",
        "checkpoint_min_step", "swa_full", "n_batch", "n_ubatch", "slot_prompt_similarity", "kv_unified", "verbosity",
    )  # fmt: skip
    return {name: getattr(options, name) for name in same} | {
        "model.path": str(model.gguf),
        "port": port,
        "cpuparams.n_threads": threads,
        "cpuparams_batch.n_threads": threads,
        "cache_type_k": f"GGML_TYPE_{type_k.upper()}",
        "cache_type_v": f"GGML_TYPE_{type_v.upper()}",
        "flash_attn_type": f"LLAMA_FLASH_ATTN_TYPE_{attention}",
        "n_gpu_layers": 0 if spec.device == "cpu" else ALL_LAYERS,
        "fit_params": False,
        "offline": True,
        "slot_save_path": f"{folder / 'slots'}/",
    }


def _flags(spec: EngineSpec, options: LlamaCppOptions, model: Checkpoint, folder: Path, port: int) -> list[str]:
    """The same parameters as llama-server's command line."""
    type_k, type_v = (kv_type(kind, model.dtype) for kind in (options.type_k, options.type_v))
    flags: dict[str, object] = {
        "--model": model.gguf,
        "--host": "127.0.0.1",
        "--port": port,
        "--ctx-size": options.n_ctx,
        "--parallel": options.n_parallel,
        "--cache-ram": options.cache_ram_mib,
        "--cache-reuse": options.n_cache_reuse,
        "--ctx-checkpoints": options.n_ctx_checkpoints,
        "--checkpoint-min-step": options.checkpoint_min_step,
        "--batch-size": options.n_batch,
        "--ubatch-size": options.n_ubatch,
        "--slot-prompt-similarity": options.slot_prompt_similarity,
        "--cache-type-k": type_k,
        "--cache-type-v": type_v,
        "--flash-attn": options.flash_attn,
        "--n-gpu-layers": 0 if spec.device == "cpu" else ALL_LAYERS,
        "--fit": "off",
        "--slot-save-path": folder / "slots",
        "--log-verbosity": options.verbosity,
    }
    if options.n_threads is not None:
        flags |= {"--threads": options.n_threads, "--threads-batch": options.n_threads}
    switches = ["--offline", "--kv-unified" if options.kv_unified else "--no-kv-unified"]
    if options.swa_full:
        switches.append("--swa-full")
    if not options.cache_idle_slots:
        switches.append("--no-cache-idle-slots")
    return [*switches, *(str(part) for flag in flags.items() for part in flag)]
