"""Answers requests by a law alone (fidelity `law`): hit and start, no model, no times that mean anything.

Outputs are drawn from a hash of the prompt, so that workloads that send outputs back still run.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict

from adapters.base import Adapter, EngineSpec, Options
from checkpoints import Checkpoint
from reference_engine.laws.base import Law
from reference_engine.laws.registry import make_law
from vocabulary.engine import EngineFacts, Fidelity, Mode, Reply, TokenRequest
from vocabulary.errors import UsageError


class LawOptions(Options):
    """The law's own options; `hitparity list laws` names them."""

    model_config = ConfigDict(extra="allow", frozen=True)


class LawAdapter(Adapter):
    """`name = "law"`, `law = "vllm@0.32"`."""

    name = "law"
    modes = (Mode.WORKER,)
    default_version = ""
    options = LawOptions

    def check(self, spec: EngineSpec) -> None:
        """The law exists and covers the options, and no key asks for what only an engine has."""
        plain = EngineSpec(engine=self.name, version="", mode=spec.mode, options=spec.options, law=spec.law)
        for key in dataclasses.fields(spec):
            if getattr(spec, key.name) != getattr(plain, key.name):
                raise UsageError(f'engine "law": key {key.name!r} has no meaning, as no engine runs; leave it out')
        self._law(spec)

    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> LawEngine:
        """Build the law; nothing is started."""
        return LawEngine(self._law(spec), spec, model)

    def law_for(
        self, spec: EngineSpec, options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """The law itself."""
        return self._law(spec).id, spec.options.model_dump()

    @staticmethod
    def _law(spec: EngineSpec) -> Law:
        if spec.law is None:
            raise UsageError("engine \"law\": key 'law' is missing; name one of `hitparity list laws`")
        return make_law(spec.law, spec.options.model_dump())


class LawEngine:
    """`vocabulary.engine.Engine` without an engine."""

    def __init__(self, law: Law, spec: EngineSpec, model: Checkpoint) -> None:
        self._law = law
        self._ids = np.asarray([i for i in range(model.vocab_size) if i not in model.reserved_ids])
        engine, _, version = law.id.partition("@")
        self.facts = EngineFacts(
            engine=engine,
            version=version,
            mode=None,
            fidelity=Fidelity.LAW,
            device="none",
            dtype="none",
            granule=law.granule,
            groups=("full",),
            context_len=model.context_len,
            vocab_size=model.vocab_size,
            caps_last_token=law.caps_last_token,
            law=law.id,
            law_options=spec.options.model_dump(),
            options=spec.options.model_dump(),
            can_salt=law.can_salt,
            can_media=law.can_media,
        )

    def send(self, request: TokenRequest) -> Reply:
        """Predict."""
        sent = time.monotonic_ns()
        expectation = self._law.send(request)
        rng = np.random.default_rng(zlib.crc32(np.asarray(request.ids, "<u4").tobytes()))
        outputs = tuple(int(i) for i in rng.choice(self._ids, request.max_tokens))
        self._law.finish(request, outputs)
        return Reply(
            request_id=request.request_id,
            prompt_len=request.prompt_len,
            hit_len=expectation.hit_len,
            hit_source=f"law {self._law.id}",
            position_start=expectation.position_start,
            position_source=f"law {self._law.id}",
            output_ids=outputs,
            first_logprob=None,
            sent_ns=sent,
            first_token_ns=None,
            done_ns=time.monotonic_ns(),
            steps=None,
        )

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """One after the other: laws state serial order."""
        return [self.send(request) for request in requests]

    def reset(self) -> bool:
        """Forget everything."""
        self._law.reset()
        return True

    def close(self) -> None:
        """Nothing to stop."""
