"""An engine built on a law that misbehaves on demand: faults that a real engine cannot be made to show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adapters.base import EngineSpec
from adapters.law.adapter import LawAdapter, LawEngine
from checkpoints import Checkpoint
from vocabulary.engine import EngineFacts, Fidelity, Mode, Reply, TokenRequest

Twist = Callable[[int, TokenRequest, Reply], Reply]
"""`(requests so far, request, honest reply)` to the reply that is given."""


def honest(number: int, request: TokenRequest, reply: Reply) -> Reply:
    """No lie; the output follows from the prompt alone, as greedy decoding does."""
    return reply


class LyingEngine:
    """Says it serves; answers as the law does until `twist` or `reset_works` interfere."""

    def __init__(
        self,
        model: Checkpoint,
        *,
        law: str = "vllm@0.32",
        twist: Twist = honest,
        reset_works: bool = True,
        reset_answer: bool = True,
        **options: Any,
    ) -> None:
        spec = EngineSpec(
            engine="law",
            version="",
            mode=Mode.WORKER,
            options=LawAdapter.options.model_validate(options),
            law=law,
        )
        inner = LawAdapter().start(spec, model, Path())
        assert isinstance(inner, LawEngine)
        self._inner, self._twist = inner, twist
        self._reset_works, self._reset_answer = reset_works, reset_answer
        self.requests = 0
        self.closed = 0
        self.facts: EngineFacts = dataclasses.replace(inner.facts, fidelity=Fidelity.SERVED, dtype="float32")

    def send(self, request: TokenRequest) -> Reply:
        reply = dataclasses.replace(self._inner.send(request), first_logprob=-1.0)
        self.requests += 1
        return self._twist(self.requests, request, reply)

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        return [self.send(request) for request in requests]

    def reset(self) -> bool:
        if self._reset_works:
            self._inner.reset()
        return self._reset_answer

    def close(self) -> None:
        self.closed += 1
