"""llama.cpp's server, launched or attached to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.base import Adapter, EngineSpec
from adapters.exposure import api_key
from adapters.http import HttpClient
from adapters.llama_cpp.engine import LlamaCppEngine
from adapters.llama_cpp.facts import ServerFacts, read_facts, resolved_options
from adapters.llama_cpp.groups import groups_of
from adapters.llama_cpp.launch import Launched, launch
from adapters.llama_cpp.law import server_law
from adapters.llama_cpp.options import LOG_SHOWS_POSITIONS, LlamaCppOptions
from adapters.llama_cpp.server_log import ServerLog
from checkpoints import Checkpoint
from vocabulary.engine import Engine, EngineFacts, Mode
from vocabulary.errors import EngineFailed, EngineUnavailable, LawDoesNotCover, UsageError

NOTES = ("ignore_eos keeps llama-server from choosing an end-of-text token; other engines may choose it and go on",)


class LlamaCppAdapter(Adapter):
    """llama-server over HTTP."""

    name = "llama.cpp"
    modes = (Mode.LAUNCH, Mode.ATTACH)
    default_version = "2026.10.11549"
    options = LlamaCppOptions

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> Engine:
        """Start the server, or find the one at `spec.url`, and read its facts back."""
        options = _options(spec)
        if spec.dtype not in ("auto", model.dtype):
            raise UsageError(
                f"{self.name}: {model.gguf} holds {model.dtype} and llama.cpp does not convert it to {spec.dtype}; "
                f'leave dtype at "auto" or make the model in {spec.dtype}'
            )
        if spec.mode is Mode.ATTACH:
            return self._attach(spec, options, model)
        return self._launch(spec, options, model, folder)

    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """The server's law; of an attached server only where all that decides is stated."""
        return server_law(_options(spec), facts_options, groups, attached=spec.mode is Mode.ATTACH)

    def _launch(self, spec: EngineSpec, options: LlamaCppOptions, model: Checkpoint, folder: Path) -> Engine:
        server = launch(spec, options, model, folder)
        client = HttpClient(self.name, server.url, timeout_s=spec.start_timeout_s)
        try:
            said = read_facts(client, model)
            log = server.process.log
            facts = self._facts(spec, options, model, said, log, version=server.version, notes=(server.how, *NOTES))
        except EngineFailed as error:
            server.process.stop()
            raise EngineUnavailable(f"{error}. {server.process.log_hint()}") from None
        except BaseException:
            server.process.stop()
            raise
        finally:
            client.close()

        def restart() -> Launched:
            return launch(spec, options, model, folder)

        return LlamaCppEngine(
            facts,
            server.url,
            slots=said.slots,
            ram_cache=options.cache_ram_mib != 0,
            timeout_s=spec.request_timeout_s,
            process=server.process,
            restart=restart,
            log=ServerLog(log) if options.verbosity >= LOG_SHOWS_POSITIONS else None,
        )

    def _attach(self, spec: EngineSpec, options: LlamaCppOptions, model: Checkpoint) -> Engine:
        if spec.url is None:
            raise UsageError(f"{self.name}: attach mode needs `url`")
        key = api_key(spec)
        client = HttpClient(self.name, spec.url, timeout_s=spec.start_timeout_s, api_key=key)
        try:
            said = read_facts(client, model)
        except EngineFailed as error:
            raise EngineUnavailable(f"{error}; is a llama-server running at {spec.url}?") from None
        finally:
            client.close()
        _check_stated(options, said, spec.url)
        facts = self._facts(spec, options, model, said, None, version=None, notes=(spec.url, *NOTES))
        return LlamaCppEngine(
            facts,
            spec.url,
            slots=said.slots,
            ram_cache=options.cache_ram_mib != 0,
            timeout_s=spec.request_timeout_s,
            api_key=key,
        )

    def _facts(
        self,
        spec: EngineSpec,
        options: LlamaCppOptions,
        model: Checkpoint,
        server: ServerFacts,
        log: Path | None,
        *,
        version: str | None,
        notes: tuple[str, ...],
    ) -> EngineFacts:
        resolved, groups = resolved_options(options, model, server, log), groups_of(model)
        law: str | None = None
        law_options: dict[str, Any] = {}
        try:
            law, law_options = self.law_for(spec, resolved, groups)
        except LawDoesNotCover as why:
            notes = (*notes, str(why))
        return EngineFacts(
            engine=self.name,
            version=version or server.build_info,
            mode=spec.mode,
            device=spec.device,
            dtype=server.dtype,
            granule=1,
            groups=groups,
            context_len=server.n_ctx_slot,
            vocab_size=server.vocab_size,
            law=law,
            law_options=law_options,
            options=resolved,
            notes=notes,
        )


def _options(spec: EngineSpec) -> LlamaCppOptions:
    assert isinstance(spec.options, LlamaCppOptions)
    return spec.options


def _check_stated(options: LlamaCppOptions, server: ServerFacts, url: str) -> None:
    """UsageError where the options contradict what the server reports."""
    stated = options.model_fields_set
    if "n_parallel" in stated and options.n_parallel != server.slots:
        raise UsageError(
            f"llama.cpp: options say n_parallel = {options.n_parallel}, but {url} has {server.slots} slots"
        )
    if "n_ctx" in stated and options.n_ctx not in (server.n_ctx_slot, server.n_ctx_slot * server.slots):
        raise UsageError(
            f"llama.cpp: options say n_ctx = {options.n_ctx}, but {url} has {server.slots} slots of {server.n_ctx_slot}"
        )
