"""Starts SGLang, or attaches to it.

Modes: `launch` runs `python -m sglang.launch_server` in a process group of its own; `attach` speaks to a
server by URL and sees no positions, as the probe is not in it. There is no `worker` mode: SGLang's
processes kill their parent with SIGKILL when one of them fails, so a script around `sglang.Engine`
could not even report why.

Start-up is mostly imports, in the server, the scheduler and the detokenizer. Skipped are the tokenizer, the
warm-up request, look-ups on the model hub and, on a CPU, the second and third import
(`plugins/hitparity_fork.py`); about 16 s of CPU remain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.base import Adapter, EngineSpec
from adapters.exposure import api_key
from adapters.sglang.engine import SglangEngine
from adapters.sglang.facts import HYBRID, facts_of
from adapters.sglang.options import SglangOptions
from adapters.sglang.server import Server, launch
from checkpoints import Checkpoint
from reference_engine.laws.registry import make_law
from vocabulary.engine import EngineFacts, Mode
from vocabulary.errors import EngineFailed, EngineUnavailable, LawDoesNotCover, UsageError

LAW_VERSIONS = ("0.5.23",)


class SglangAdapter(Adapter):
    """SGLang 0.5.23; other versions run as long as /server_info, /generate and the probe's hook keep their form."""

    name = "sglang"
    modes = (Mode.LAUNCH, Mode.ATTACH)
    default_version = "0.5.23"
    options = SglangOptions

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> SglangEngine:
        """Launch or attach; ready for requests."""
        if spec.mode is Mode.ATTACH:
            return self._attach(spec, model)
        if spec.mode is not Mode.LAUNCH:
            raise UsageError(f"sglang: no {spec.mode} mode; there are {', '.join(self.modes)}")
        return self._launch(spec, model, folder)

    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """Full attention with plain or EAGLE's keys, and full with recurrent layers."""
        version = str(facts_options.get("version", spec.version))
        hybrid = groups != ("full",)
        why = None
        if version not in LAW_VERSIONS:
            why = f"version {version} (there is {', '.join(LAW_VERSIONS)})"
        elif facts_options["enable_hierarchical_cache"]:
            why = "a hierarchical cache"
        elif (policy := facts_options["radix_eviction_policy"]) not in (None, "lru"):
            why = f"radix_eviction_policy = {policy}"
        elif hybrid and not facts_options.get("disable_overlap_schedule"):
            why = "overlapped scheduling of recurrent layers, which keeps states one step later"
        elif hybrid and facts_options.get("max_mamba_cache_size") is None:
            why = "recurrent layers with an unknown number of states; set max_mamba_cache_size"
        if why:
            raise LawDoesNotCover(f"sglang: no law covers {why}")
        page = facts_options["page_size"]
        options = {
            "groups": list(groups),
            "page_size": page,
            "max_total_tokens": facts_options["max_total_num_tokens"],
            "chunked_prefill_size": facts_options["chunked_prefill_size"],
            "disable_radix_cache": facts_options["disable_radix_cache"],
            "speculative_algorithm": facts_options["speculative_algorithm"],
        }
        if hybrid:
            options |= {name: facts_options[name] for name in HYBRID if facts_options.get(name) is not None}
        law = f"sglang@{version}"
        make_law(law, options)
        return law, options

    def _launch(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> SglangEngine:
        if spec.device == "cpu" and model.architecture == "qwen3_5_text":
            raise EngineUnavailable(
                f"sglang: no CPU forward for the GDN layers of {model.name}: it needs SGLang's compiled kernels, which "
                f"are not on the package index. Use vllm or llama.cpp for this model, or a CUDA device"
            )
        assert isinstance(spec.options, SglangOptions)
        server, launched = launch(spec, spec.options, model, folder)
        try:
            return SglangEngine(server, self._facts(server, spec, model), launched)
        except EngineFailed as error:
            launched.stop()
            raise EngineUnavailable(f"{error}. {launched.process.log_hint()}") from None
        except BaseException:
            launched.stop()
            raise

    def _attach(self, spec: EngineSpec, model: Checkpoint) -> SglangEngine:
        if spec.url is None:
            raise UsageError('sglang: attach mode needs url = "http://host:port"')
        server = Server(url=spec.url, timeout_s=spec.request_timeout_s, api_key=api_key(spec))
        try:
            facts = self._facts(server, spec, model)
        except EngineFailed as error:
            raise EngineUnavailable(f"{error}. Is an SGLang server running at {spec.url}?") from None
        for name in spec.options.model_fields_set & facts.options.keys():
            asked, runs = getattr(spec.options, name), facts.options[name]
            if asked != runs:
                raise UsageError(
                    f"sglang: the experiment says {name} = {asked!r}, the server at {spec.url} runs {runs!r}"
                )
        return SglangEngine(server, facts)

    def _facts(self, server: Server, spec: EngineSpec, model: Checkpoint) -> EngineFacts:
        client = server.client()
        try:
            info, model_info = client.get_json("/server_info"), client.get_json("/model_info")
        finally:
            client.close()
        facts = facts_of(info, spec, model, model_info)
        try:
            law, options = self.law_for(spec, facts.options, facts.groups)
        except LawDoesNotCover as error:
            return dataclasses.replace(facts, notes=(*facts.notes, str(error)))
        notes = facts.notes
        if facts.options["speculative_algorithm"]:
            notes = (*notes, "the law knows no pages that drafts reserve: under memory pressure it may drop less")
        return dataclasses.replace(facts, law=law, law_options=options, notes=notes)
