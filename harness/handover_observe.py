"""What this machine shows: built versions, a started engine's facts, and the reference engine's tables."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from adapters.base import EngineSpec
from adapters.environments import environments
from adapters.reference.options import ReferenceOptions
from adapters.registry import ADAPTERS, adapter_for
from checkpoints.make import ensure
from harness.cases.fitting import fit
from harness.cases.format import Case
from harness.cases.served import RESERVED, model_for
from reference_engine.laws.base import Expectation
from reference_engine.laws.entry import layer_groups
from reference_engine.laws.registry import make_law
from vocabulary.engine import Engine, Span, TokenRequest
from vocabulary.errors import EngineFailed, UsageError

MODEL = "tiny-qwen3"
TOKENS = "tokens"


def built(system: str) -> dict[str, str]:
    """Versions of a system that have an environment, without starting anything."""
    versions = [e.version for e in environments() if e.version and e.engine in (system, f"{system}-lookup")]
    return {"environments": ", ".join(dict.fromkeys(versions))} if versions else {}


def observed(system: str, case: Case | None) -> dict[str, str]:
    """Start the system's engine on a tiny model, read its facts back, and send the case's prompts in order.

    Raises EngineUnavailable without an environment and EngineFailed when it breaks; UsageError for a system that no
    adapter starts.
    """
    # vLLM-Ascend needs an NPU to serve; its scheduler answers without one.
    engine_name = system if system in ADAPTERS else f"{system}-lookup"
    if engine_name not in ADAPTERS:
        raise UsageError(f"{system}: no adapter starts it, so nothing can be observed")
    adapter = adapter_for(engine_name)
    spec = EngineSpec(
        engine=engine_name, version=adapter.default_version, mode=adapter.modes[0], options=adapter.options()
    )
    with tempfile.TemporaryDirectory(prefix="hitparity-handover-") as folder:
        engine = adapter.start(spec, ensure(MODEL), Path(folder))
        try:
            return _facts(engine) | (_replies(engine, case) if case else {})
        finally:
            engine.close()


def _facts(engine: Engine) -> dict[str, str]:
    facts = engine.facts
    shown = {
        "version": facts.version,
        "granule": f"{facts.granule} {TOKENS}",
        "groups": ", ".join(facts.groups),
        "last token capped": "yes" if facts.caps_last_token else "no",
        "cache salt": "yes" if facts.can_salt else "no",
        "law": f"{facts.law} {dict(facts.law_options)}" if facts.law else "none",
    }
    return shown | {f"option {name}": str(value) for name, value in facts.options.items()}


def _replies(engine: Engine, case: Case) -> dict[str, str]:
    fitted = fit(case, engine.facts.vocab_size, RESERVED)
    shown = {}
    for index in range(len(case.requests)):
        request, _ = fitted.request(case, index)
        reply = engine.send(request)
        start = "not shown" if reply.position_start is None else reply.position_start
        shown[f"prompt {index + 1}, {reply.prompt_len} {TOKENS}"] = f"hit {reply.hit_len}, start {start}"
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTables:
    """`reference_engine.hand_over.GroupTables`, as the worker reports it."""

    group: str
    read: tuple[Span, ...]
    written: tuple[Span, ...]
    restored: Span | None
    stored: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """`reference_engine.hand_over.HandOverTables`, as the worker reports it."""

    block_len: int
    block_table: tuple[int, ...]
    holders: tuple[int, ...]
    positions: Span
    query_start_loc: tuple[int, ...]
    seq_len: int
    slot_mapping: tuple[int, ...]
    read_only_blocks: int
    read_only_unchanged: bool
    holders_after: tuple[int, ...]
    groups: tuple[GroupTables, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """`reference_engine.hand_over.HandOver`, as the worker reports it."""

    hit_len: int
    position_start: int
    first_query_len: int
    first_key_len: int
    keys_gathered: bool
    tables: Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The hand-over of one request that the reference engine served."""

    law: str
    prompt_len: int
    steps: tuple[Span, ...]
    """Prefill steps."""
    expectation: Expectation
    """The law's own account, from the law asked alone."""
    seen: Seen


def live(case: Case, law: str, options: Mapping[str, Any]) -> Live:
    """Serve the case's prompts, the last one together with a copy of itself so that sharing shows in the counts.

    Needs torch. Raises EngineUnavailable without it, UsageError for a law that the engine cannot follow.
    """
    adapter = adapter_for("reference")
    longest = max(len(request.prompt) for request in case.requests)
    groups = layer_groups(options)
    room = max(4 * (longest + 64), *(4 * (group.block or 0) for group in groups))
    chosen = ReferenceOptions(law_options=dict(options), pool_tokens=room, trace_hand_over=True)
    model = model_for(law, groups, drafts="num_speculative_tokens" in options)
    spec = EngineSpec(
        engine="reference", version=adapter.default_version, mode=adapter.modes[0], options=chosen, law=law
    )
    with tempfile.TemporaryDirectory(prefix="hitparity-handover-") as folder:
        engine = adapter.start(spec, ensure(model), Path(folder))
        try:
            fitted = fit(case, engine.facts.vocab_size, RESERVED)
            alone = make_law(engine.facts.law or law, engine.facts.law_options)
            requests = [fitted.request(case, index)[0] for index in range(len(case.requests))]
            for request in requests[:-1]:
                alone.send(request)
                alone.finish(request, engine.send(request).output_ids)
            last = requests[-1]
            copy = TokenRequest(request_id=f"{last.request_id}-copy", ids=last.ids, max_tokens=last.max_tokens)
            reply = engine.send_together([last, copy])[0]
            expectation = alone.send(last)
        finally:
            engine.close()
    try:
        seen = TypeAdapter(Seen).validate_python(reply.native["hand_over"])
    except ValidationError as error:
        raise EngineFailed(f"reference: the hand-over it reports is not as expected: {error}") from None
    return Live(law=law, prompt_len=last.prompt_len, steps=reply.steps or (), expectation=expectation, seen=seen)
