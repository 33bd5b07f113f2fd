"""`hitparity doctor`: start each engine on a tiny model and see whether its numbers can be believed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from adapters.base import EngineSpec
from adapters.registry import ADAPTERS, adapter_for
from checkpoints.make import ensure
from harness.judge import Judge
from vocabulary.engine import Engine, EngineFacts, Feature, Reply, TokenRequest
from vocabulary.errors import EngineUnavailable, ExitCode, HitparityError
from workloads.source import TokenSource

MODEL = "tiny-qwen3"
ENGINES = tuple(name for name in ADAPTERS if name != "law")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What one engine showed."""

    engine: str
    facts: EngineFacts | None = None
    """None: it did not start; `remarks` say why."""
    hit_source: str = ""
    position_source: str = ""
    hit_shown: bool = False
    """A repeated prompt was reported as a hit: the flags that expose cached tokens are on."""
    reset_works: bool = False
    logprob_shown: bool = False
    remarks: tuple[str, ...] = ()
    code: ExitCode = ExitCode.CLEAN


def examine(engine: str) -> Examination:
    """Start the engine, send one prompt twice, reset, send it again. Does not raise for a missing engine."""
    adapter = adapter_for(engine)
    spec = EngineSpec(engine=engine, version=adapter.default_version, mode=adapter.modes[0], options=adapter.options())
    with tempfile.TemporaryDirectory(prefix="hitparity-doctor-") as folder:
        try:
            started = adapter.start(spec, ensure(MODEL), Path(folder))
        except HitparityError as error:
            return Examination(engine=engine, remarks=(str(error),), code=error.exit_code)
        try:
            return _probe(engine, started)
        except HitparityError as error:
            return Examination(engine=engine, facts=started.facts, remarks=(str(error),), code=error.exit_code)
        finally:
            started.close()


def installed(engine: str) -> Examination:
    """Whether the engine's environment exists, without starting anything."""
    from adapters.environments import python_for

    adapter = adapter_for(engine)
    spec = EngineSpec(engine=engine, version=adapter.default_version, mode=adapter.modes[0], options=adapter.options())
    try:
        return Examination(engine=engine, remarks=(f"{adapter.default_version}: {python_for(spec)}",))
    except EngineUnavailable as error:
        return Examination(engine=engine, remarks=(str(error),), code=error.exit_code)


def _probe(engine: str, started: Engine) -> Examination:
    facts = started.facts
    length = min(max(33, 2 * facts.granule + 1), facts.context_len - 1)
    ids = tuple(TokenSource(0, facts.vocab_size).fresh(length))
    judge, remarks = Judge(facts), list(facts.notes)

    def send(name: str) -> Reply:
        request = TokenRequest(request_id=f"doctor-{name}", ids=ids, features=frozenset({Feature.LOGPROB}))
        reply = started.send(request)
        remarks.extend(f"{finding.kind}: {finding.detail}" for finding in judge.judge(request, reply).findings)
        return reply

    asked = started.reset()
    first, second = send("cold"), send("warm")
    asked = started.reset() and asked
    judge.reset()
    third = send("after-reset")
    if not asked:
        remarks.append("the engine offers no way to empty its cache as it is configured")
    hit_shown = bool(second.hit_len)
    reset_works = asked and third.hit_len == 0
    healthy = hit_shown and reset_works and len(remarks) == len(facts.notes)
    return Examination(
        engine=engine,
        facts=facts,
        hit_source=second.hit_source,
        position_source=second.position_source,
        hit_shown=hit_shown,
        reset_works=reset_works,
        logprob_shown=first.first_logprob is not None,
        remarks=tuple(remarks),
        code=ExitCode.CLEAN if healthy else ExitCode.FINDINGS,
    )
