"""vLLM really serving tiny models: where it starts, what it refuses, and that both ways to reach it agree."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.base import EngineSpec
from adapters.registry import adapter_for
from adapters.vllm.server import VllmServer
from checkpoints import Checkpoint
from reference_engine.laws.registry import make_law
from vocabulary.engine import Engine, Feature, Mode, Reply, TokenRequest
from vocabulary.errors import EngineFailed, EngineUnavailable, RequestRefused

pytestmark = pytest.mark.live("vllm")

Spec = Callable[..., EngineSpec]
Open = Callable[[str], Checkpoint]

_draw = random.Random(20)
SHARED = [_draw.randrange(128) for _ in range(1024)]
A = (*SHARED, *(_draw.randrange(128) for _ in range(14)))
B = (*A[:1026], *((A[1026] + 1) % 128, *(_draw.randrange(128) for _ in range(11))))
CHANGED = (*B[:17], (B[17] + 1) % 128, *B[18:])


def ask(engine: Engine, ids: tuple[int, ...], **more: object) -> Reply:
    return engine.send(TokenRequest(request_id="r", ids=ids, **more))  # type: ignore[arg-type]


def starts(engine: Engine, *prompts: tuple[int, ...]) -> list[tuple[int | None, int | None]]:
    replies = [ask(engine, ids) for ids in prompts]
    for reply in replies:
        assert reply.prompt_len == 1038
        assert reply.position_source == "scheduler"
        assert reply.steps is not None
        assert reply.steps[0][0] == reply.position_start
        assert reply.steps[-1][1] == 1038
        assert reply.first_token_ns is not None
        assert reply.sent_ns < reply.first_token_ns <= reply.done_ns
    return [(reply.hit_len, reply.position_start) for reply in replies]


def expect_point_nine(engine: Engine) -> None:
    engine.reset()
    assert starts(engine, A, B, CHANGED, A) == [(0, 0), (1024, 1024), (0, 0), (1024, 1024)]
    assert starts(engine, A, B, CHANGED, A) == [(1024, 1024)] * 4


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory, engine_spec: Spec, checkpoint: Open) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("vllm-launch")
    engine = adapter_for("vllm").start(engine_spec("vllm", block_size=32), checkpoint("tiny-qwen3"), folder)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=[64, 128])
def in_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine_spec: Spec, checkpoint: Open
) -> Iterator[Engine]:
    # 128 is vLLM's own choice on a CPU: left to it, so that the granule is read back and not copied.
    options = {"max_num_batched_tokens": 512} | ({"block_size": 64} if request.param == 64 else {})
    spec = engine_spec("vllm", mode=Mode.WORKER, **options)
    engine = adapter_for("vllm").start(spec, checkpoint("tiny-qwen3"), tmp_path_factory.mktemp("vllm-worker"))
    assert engine.facts.granule == request.param
    yield engine
    engine.close()


def test_shared_prefix_launched(launched: Engine) -> None:
    assert (launched.facts.granule, launched.facts.groups, launched.facts.law) == (32, ("full",), "vllm@0.32")
    expect_point_nine(launched)


def test_shared_prefix_in_process(in_process: Engine) -> None:
    assert in_process.facts.law_options["block_size"] == in_process.facts.granule
    expect_point_nine(in_process)
    in_process.reset()
    assert ask(in_process, A).steps == ((0, 512), (512, 1024), (1024, 1038))


def test_both_modes_give_the_same_tokens(launched: Engine, in_process: Engine) -> None:
    features = frozenset({Feature.LOGPROB})
    for engine in (launched, in_process):
        engine.reset()
    cold, other = (ask(engine, A, max_tokens=4, features=features) for engine in (launched, in_process))
    warm = ask(launched, A, max_tokens=4, features=features)
    assert warm.hit_len == 1024
    assert cold.output_ids == warm.output_ids == other.output_ids
    assert len(cold.output_ids) == 4
    assert cold.first_logprob is not None
    assert cold.first_logprob == pytest.approx(warm.first_logprob, abs=1e-3)
    assert cold.first_logprob == pytest.approx(other.first_logprob, abs=1e-3)


def test_reset_salt_and_prompt_logprobs(launched: Engine, in_process: Engine) -> None:
    for engine in (launched, in_process):
        ask(engine, A)
        assert engine.reset() is True
        assert [ask(engine, A).hit_len for _ in range(2)] == [0, 1024]
        assert engine.facts.can_salt
        assert [ask(engine, A, namespace=salt).hit_len for salt in ("x", "x", "y", None)] == [0, 1024, 0, 1024]
        assert ask(engine, A, features=frozenset({Feature.PROMPT_LOGPROBS})).hit_len == 0


def test_refused_requests_leave_the_engine_alive(launched: Engine, in_process: Engine) -> None:
    for engine in (launched, in_process):
        ask(engine, A)
        beyond = engine.facts.context_len + 1
        for ids, reason in (
            ((5, 10**6), "1000000"),
            ((5, -6), "-6|greater"),
            ((), "prompt"),
            ((5,) * beyond, "length"),
        ):
            with pytest.raises(RequestRefused, match=reason):
                ask(engine, ids)
        with pytest.raises(RequestRefused):
            engine.send_together([TokenRequest(request_id="good", ids=A), TokenRequest(request_id="bad", ids=(10**6,))])
        assert ask(engine, A).hit_len == 1024


def test_together_keeps_order(launched: Engine, in_process: Engine) -> None:
    for engine in (launched, in_process):
        ask(engine, A)
        ask(engine, CHANGED)
        requests = [TokenRequest(request_id=f"r{i}", ids=ids) for i, ids in enumerate((A, (1,) * 40, CHANGED))]
        replies = engine.send_together(requests)
        assert [reply.request_id for reply in replies] == ["r0", "r1", "r2"]
        assert [reply.prompt_len for reply in replies] == [1038, 40, 1038]
        assert [reply.position_start for reply in replies] == [1024, 0, 1024]


def test_attached_server_reports_hits_and_no_positions(
    launched: Engine, engine_spec: Spec, checkpoint: Open, tmp_path: Path
) -> None:
    assert isinstance(launched, VllmServer)
    port = launched._connect()._connection.port
    spec = replace(engine_spec("vllm", mode=Mode.ATTACH), url=f"http://127.0.0.1:{port}")
    engine = adapter_for("vllm").start(spec, checkpoint("tiny-qwen3"), tmp_path)
    assert (engine.facts.granule, engine.facts.version, engine.facts.law) == (32, "0.32.0", "vllm@0.32")
    assert engine.reset() is True
    replies = [ask(engine, A) for _ in range(2)]
    assert [(reply.hit_len, reply.position_start, reply.steps) for reply in replies] == [
        (0, None, None),
        (1024, None, None),
    ]
    engine.close()
    assert ask(launched, A).position_start == 1024


def test_gated_delta_nets_run(engine_spec: Spec, checkpoint: Open, tmp_path: Path) -> None:
    engine = adapter_for("vllm").start(engine_spec("vllm"), checkpoint("tiny-qwen3.5"), tmp_path)
    try:
        assert (engine.facts.dtype, engine.facts.groups, engine.facts.law) == (
            "bfloat16", ("full", "gdn"), "vllm@0.32")  # fmt: skip
        law = make_law("vllm@0.32", engine.facts.law_options)
        for ids in (A, A, A[:600], A[:600], B, CHANGED, A[:512], A[:512]):
            expected = law.send(TokenRequest(request_id="law", ids=ids))
            reply = ask(engine, ids)
            law.finish(TokenRequest(request_id="law", ids=ids), reply.output_ids)
            assert (reply.hit_len, reply.position_start) == (expected.hit_len, expected.position_start)
        engine.reset()
        assert starts(engine, A, A) == [(0, 0), (1024, 1024)]
        reply = ask(engine, A)
        assert (reply.steps, len(reply.output_ids)) == (((1024, 1038),), 1)
    finally:
        engine.close()


def test_engine_that_cannot_start_says_why(engine_spec: Spec, checkpoint: Open, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"could not start vLLM: No common block size for 24"):
        adapter_for("vllm").start(
            engine_spec("vllm", mode=Mode.WORKER, block_size=24), checkpoint("tiny-qwen3"), tmp_path
        )


@pytest.mark.fault("server and engine core killed", "vllm (real)", "was killed by signal SIGKILL...engine.log", 4)
def test_dead_server_is_reported(launched: Engine) -> None:
    assert isinstance(launched, VllmServer)
    assert launched._process is not None
    os.killpg(launched._process.child.pid, signal.SIGKILL)
    with pytest.raises(EngineFailed, match=r"was killed by signal SIGKILL(?s:.*)engine\.log"):
        ask(launched, A)
