"""A case served by an engine on a tiny model: the model by the case's layer groups, the IDs in its vocabulary.

Generated tokens are the engine's own. Where a prompt goes on with the output that the case states for an earlier
request, it goes on with what the engine really generated; the common prefixes are compared again before each send.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from adapters.base import EngineSpec
from adapters.registry import ADAPTERS, adapter_for
from checkpoints.make import ensure
from checkpoints.tiny import BOS, EOS
from harness.cases.fitting import DoesNotFit, Fitted, fit
from harness.cases.format import Case
from harness.cases.subjects import Outcome, outcome_of
from harness.experiment import checked
from reference_engine.laws.base import Law
from reference_engine.laws.parts.history import common_prefix
from reference_engine.laws.registry import make_law
from vocabulary.engine import Engine, Feature, Fidelity, TokenRequest
from vocabulary.errors import EngineFailed, LawDoesNotCover
from vocabulary.groups import Kind, LayerGroup, parse_groups

RESERVED = frozenset({BOS, EOS})
ADAPTER_NAMES = {"ctx_checkpoints": "n_ctx_checkpoints"}
"""Other spellings of options in case files."""
ROOM = 64
"""Positions of a context beyond the longest prompt and its output."""
MODELS = {
    frozenset({Kind.FULL}): "tiny-qwen3",
    frozenset({Kind.FULL, Kind.SWA}): "tiny-gemma3",
    frozenset({Kind.FULL, Kind.GDN}): "tiny-qwen3.5",
}
DRAFTING = {"tiny-qwen3.5": "tiny-qwen3.5-mtp"}
WINDOW = 128
"""Of tiny-gemma3."""
EMULATED_POOL = 32768
"""Tokens of the reference engine's pool, the same for most cases: one start serves them."""


class ServedSubject:
    """One engine at a time, kept while cases ask for the same configuration and a reset empties it."""

    level = Fidelity.SERVED

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._key: str | None = None
        self._logs = tempfile.TemporaryDirectory(prefix="hitparity-served-")
        self._starts = 0

    def begin(self, case: Case) -> None:
        """Start or reset the engine; LawDoesNotCover where a case cannot be had from a tiny model."""
        spec, model = self.plan(case)
        key = json.dumps([spec.engine, spec.law, spec.options.model_dump(mode="json"), model], sort_keys=True)
        if self._engine is None or key != self._key or _remembers(spec) or not self._engine.reset():
            self.stop_engine()
            self._starts += 1
            folder = Path(self._logs.name) / str(self._starts)
            folder.mkdir()
            self._engine, self._key = adapter_for(spec.engine).start(spec, ensure(model), folder), key
        _same_groups(case, self._engine)
        self._case = case
        self._fitted: Fitted = fit(case, self._engine.facts.vocab_size, RESERVED)
        self._sent: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []

    def plan(self, case: Case) -> tuple[EngineSpec, str]:
        """Engine configuration and tiny model."""
        return plan_for(case)

    def send(self, index: int) -> Outcome:
        """Send; where logits are stated, once more cold."""
        assert self._engine is not None
        request = self._request(index)
        shift = self._case.requests[index].logit_shift
        if shift is not None:
            request = dataclasses.replace(request, features=request.features | {Feature.LOGITS})
        reply = self._engine.send(request)
        self._sent.append((self._prompt_and_output(index), request.ids, reply.output_ids))
        outcome = outcome_of(request, reply)
        if shift is None:
            return outcome
        if index != len(self._case.requests) - 1:
            raise LawDoesNotCover(f"{self._case.id}: only the last request can state a shift of logits, which resets")
        return dataclasses.replace(outcome, logit_shift=self._shift(request, reply.native.get("logits")))

    def law(self, case: Case) -> Law:
        """The one that the started engine names for itself."""
        assert self._engine is not None
        facts = self._engine.facts
        if facts.law is None:
            raise LawDoesNotCover("; ".join(facts.notes) or f"{facts.engine}: no law covers it as configured")
        return make_law(facts.law, facts.law_options)

    def stop_engine(self) -> None:
        """Stop the engine that runs, if any."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._key = None

    def close(self) -> None:
        """Stop the engine and drop its log."""
        self.stop_engine()
        self._logs.cleanup()

    def _shift(self, request: TokenRequest, warm: Any) -> float:
        assert self._engine is not None
        if not self._engine.reset():
            raise EngineFailed(f"{self._engine.facts.engine}: no reset, so no cold run to compare logits with")
        cold = self._engine.send(dataclasses.replace(request, request_id=f"{request.request_id}-cold"))
        if warm is None or (other := cold.native.get("logits")) is None:
            raise LawDoesNotCover(f"{self._engine.facts.engine}: gives no logits")
        return float(np.abs(np.asarray(warm) - np.asarray(other)).max())

    def _prompt_and_output(self, index: int) -> tuple[int, ...]:
        """As the case states them."""
        return self._case.requests[index].prompt.ids + self._case.requests[index].output_ids

    def _request(self, index: int) -> TokenRequest:
        """In the model's vocabulary, outputs replaced; LawDoesNotCover where a common prefix would change."""
        request, _ = self._fitted.request(self._case, index)
        stated = np.asarray(self._case.requests[index].prompt.ids, np.int32)
        ids = list(request.ids)
        shared = [common_prefix(np.asarray(sequence, np.int32), stated) for sequence, _, _ in self._sent]
        for (_, prompt, output), common in zip(self._sent, shared, strict=True):
            for at in range(len(prompt), common):
                ids[at] = output[at - len(prompt)]
        got = np.asarray(ids, np.int32)
        for (_, prompt, output), common in zip(self._sent, shared, strict=True):
            if common_prefix(np.asarray(prompt + output, np.int32), got) != common:
                raise DoesNotFit(
                    f"{self._case.id}, request {index}: what the engine generated meets a token of this prompt and "
                    f"lengthens a common prefix; change the case's IDs"
                )
        return dataclasses.replace(request, ids=tuple(ids))


class EmulatedSubject(ServedSubject):
    """The reference engine under the law of each case: a real forward for systems that cannot be started here."""

    def plan(self, case: Case) -> tuple[EngineSpec, str]:
        """LawDoesNotCover where no tiny model has the case's layer groups."""
        adapter = adapter_for("reference")
        longest = max(len(request.prompt) + len(request.output_ids) for request in case.requests)
        options = {
            "law_options": {"groups": list(case.groups), **case.options},
            "pool_tokens": max(EMULATED_POOL, len(case.requests) * (longest + ROOM)),
        }
        spec = EngineSpec(
            engine="reference",
            version=adapter.default_version,
            mode=adapter.modes[0],
            law=case.engine,
            options=checked(adapter.options, options, f"{case.engine}, emulated"),
        )
        return spec, model_for(case.engine, parse_groups(case.groups), drafts="num_speculative_tokens" in case.options)


def plan_for(case: Case) -> tuple[EngineSpec, str]:
    """Engine configuration and tiny model of a case; LawDoesNotCover or UsageError says why there is none."""
    system, _, version = case.engine.partition("@")
    if system not in ADAPTERS:
        raise LawDoesNotCover(f"{case.engine}: no engine to serve it; `hitparity list engines`")
    adapter = adapter_for(system)
    if version and not f"{adapter.default_version}.".startswith(f"{version}."):
        raise LawDoesNotCover(f"{case.engine}: only {system} {adapter.default_version} is served")
    if any(request.external_hit is not None or request.fork_of is not None for request in case.requests):
        raise LawDoesNotCover(f"{case.engine}: external hits and forks cannot be asked for")
    groups = parse_groups(case.groups)
    options = {ADAPTER_NAMES.get(key, key): value for key, value in case.options.items()}
    longest = max(len(request.prompt) + len(request.output_ids) for request in case.requests)
    if system == "llama.cpp":
        options.setdefault("n_ctx", max(8192, (longest + ROOM) * options.get("n_parallel", 1)))
    elif system == "llama-cpp-python":
        options.setdefault("n_ctx", max(8192, longest + ROOM))
    elif block := _common_block(groups):
        options.setdefault("block_size" if system == "vllm" else "page_size", block)
    spec = EngineSpec(
        engine=system,
        version=adapter.default_version,
        mode=adapter.modes[0],
        options=checked(adapter.options, options, f"{case.engine}, served"),
    )
    return spec, model_for(case.engine, groups)


def model_for(engine: str, groups: tuple[LayerGroup, ...], *, drafts: bool = False) -> str:
    """The tiny model with these kinds of layers; `drafts`: and with a drafting head, where there is one."""
    kinds = frozenset(group.kind for group in groups)
    windows = {group.window for group in groups if group.window is not None}
    if kinds not in MODELS or windows - {WINDOW}:
        raise LawDoesNotCover(
            f"{engine}: no tiny model has layer groups {', '.join(map(str, groups))}; there are full, "
            f"full + swa:{WINDOW} and full + gdn"
        )
    model = MODELS[kinds]
    return DRAFTING.get(model, model) if drafts else model


def _common_block(groups: tuple[LayerGroup, ...]) -> int | None:
    blocks = {group.block for group in groups if group.block is not None}
    if len(blocks) > 1:
        raise LawDoesNotCover(f"blocks of {', '.join(map(str, sorted(blocks)))} tokens: a served model has one size")
    return blocks.pop() if blocks else None


def _remembers(spec: EngineSpec) -> bool:
    """Whether a reset leaves something that decides later hits: the order in which slots were used, a RAM cache."""
    options = spec.options.model_dump()
    return spec.engine == "llama.cpp" and (options["n_parallel"] > 1 or options["cache_ram_mib"] != 0)


def _same_groups(case: Case, engine: Engine) -> None:
    """LawDoesNotCover where the engine's layer groups are not the case's: it chose other blocks, or one memory."""
    made = engine.facts.law_options.get("groups")
    if made is None:
        return
    wanted = {(group.kind, group.window) for group in parse_groups(case.groups)}
    blocks = {group.kind: group.block for group in parse_groups(case.groups) if group.block is not None}
    got = parse_groups(made)
    if {(group.kind, group.window) for group in got} != wanted or any(
        group.block is not None and blocks.get(group.kind, group.block) != group.block for group in got
    ):
        raise LawDoesNotCover(f"{case.id}: {case.engine} made layer groups {', '.join(made)} of the tiny model")
