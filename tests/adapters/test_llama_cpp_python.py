"""llama-cpp-python, really running tiny models in its worker."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from adapters.base import EngineSpec
from adapters.llama_cpp_python.adapter import LlamaCppPythonAdapter
from checkpoints import Checkpoint
from reference_engine.laws.registry import make_law
from vocabulary.engine import Engine, Feature, Reply, TokenRequest
from vocabulary.errors import EngineFailed, EngineUnavailable, RequestRefused
from workloads.families.changed import Changed, changed
from workloads.source import TokenSource

NAME = "llama-cpp-python"
pytestmark = pytest.mark.live(NAME)
A, B, B2 = (send.prompt([]) for send in changed(Changed(), TokenSource(0, 128))[:3])
Specs = Callable[..., EngineSpec]
Models = Callable[[str], Checkpoint]


@contextmanager
def started(spec: EngineSpec, model: Checkpoint, folder: Path) -> Iterator[Engine]:
    engine = LlamaCppPythonAdapter().start(spec, model, folder)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def engine(engine_spec: Specs, checkpoint: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    spec, folder = engine_spec(NAME, n_threads=1), tmp_path_factory.mktemp("python")
    with started(spec, checkpoint("tiny-qwen3"), folder) as running:
        yield running


def ask(engine: Engine, ids: list[int], max_tokens: int = 1, **fields: object) -> Reply:
    return engine.send(TokenRequest(request_id="r", ids=tuple(ids), max_tokens=max_tokens, **fields))


def hits(engine: Engine, *prompts: list[int]) -> list[int | None]:
    return [ask(engine, prompt).hit_len for prompt in prompts]


def test_founding_comparison(engine: Engine) -> None:
    assert engine.reset()
    assert hits(engine, A, B, B2, A, A, B) == [0, 1026, 17, 17, 1038, 1026]
    assert engine.reset()
    assert hits(engine, A) == [0]


def test_immediate_repeat_computes_nothing(engine: Engine) -> None:
    engine.reset()
    cold, again = (ask(engine, A, features=frozenset({Feature.LOGPROB})) for _ in range(2))
    assert cold.steps == ((0, 512), (512, 1024), (1024, 1038))
    assert (again.hit_len, again.position_start, again.steps) == (1038, 1038, ())
    assert again.output_ids == cold.output_ids
    assert cold.first_logprob is not None and again.first_logprob == cold.first_logprob < 0


def test_generated_tokens_count_but_the_last(engine: Engine) -> None:
    engine.reset()
    output = ask(engine, A, max_tokens=30).output_ids
    assert len(output) == 30
    assert hits(engine, A) == [1037]
    assert ask(engine, A, max_tokens=30).output_ids == output
    following = ask(engine, [*A, *output, *range(20)])
    assert (following.hit_len, following.steps) == (1067, ((1067, 1088),))


def test_cut_and_deletion(engine: Engine) -> None:
    engine.reset()
    assert hits(engine, A, [*A[:600], *range(9)]) == [0, 600]
    assert ask(engine, [*A[:300], *A[400:]]).steps == ((300, 812), (812, 938))


def test_together_means_one_after_the_other(engine: Engine) -> None:
    engine.reset()
    replies = engine.send_together([TokenRequest(request_id=str(n), ids=tuple(ids)) for n, ids in enumerate((A, B, A))])
    assert [(reply.request_id, reply.hit_len) for reply in replies] == [("0", 0), ("1", 1026), ("2", 1026)]
    assert all(a.done_ns <= b.sent_ns for a, b in pairwise(replies))
    assert any("no batching" in note for note in engine.facts.notes)


@pytest.mark.parametrize(
    ("ids", "fields", "why"),
    [
        ([], {}, "empty"),
        ([2048], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([1] * 8190, {"max_tokens": 3}, "exceed n_ctx"),
        ([1], {"namespace": "salt"}, "no cache salt"),
        ([1], {"features": frozenset({Feature.PROMPT_LOGPROBS})}, "prompt_logprobs"),
    ],
)
def test_refusals_leave_the_context_alone(engine: Engine, ids: list[int], fields: dict[str, object], why: str) -> None:
    ask(engine, A)
    with pytest.raises(RequestRefused, match=why):
        ask(engine, ids, **fields)
    assert hits(engine, A) == [1038]


def test_facts(engine: Engine) -> None:
    facts = engine.facts
    assert (facts.version, facts.dtype, facts.context_len, facts.vocab_size) == ("0.3.36", "float32", 8192, 2048)
    assert not facts.caps_last_token
    assert facts.law == "llama-cpp-python@0.3"
    assert facts.law_options == {
        "groups": ["full"],
        "n_ctx": 8192,
        "n_batch": 512,
        "n_ubatch": 512,
        "swa_full": True,
    }
    assert facts.options["type_k"] == "f32" and facts.options["swa_full"] is True


def test_random_requests_follow_the_law(engine: Engine) -> None:
    draw = random.Random(5)
    stems = [[draw.randrange(128) for _ in range(60)] for _ in range(3)]
    law = make_law(engine.facts.law or "", engine.facts.law_options)
    engine.reset()
    ids: tuple[int, ...] = (1,)
    for number in range(60):
        if draw.random() < 0.8:  # else the same prompt once more
            stem = draw.choice(stems)[: draw.choice((4, 30, 60))]
            ids = (*stem, *(draw.randrange(128) for _ in range(draw.choice((0, 1, 20)))))
        request = TokenRequest(request_id=str(number), ids=ids, max_tokens=draw.choice((1, 1, 3)))
        expected = law.send(request)
        reply = engine.send(request)
        law.finish(request, reply.output_ids)
        assert (reply.hit_len, reply.position_start) == (expected.hit_len, expected.position_start), (number, ids)


def test_sliding_window_kept_whole(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    with started(engine_spec(NAME, n_threads=1), checkpoint("tiny-gemma3"), tmp_path) as engine:
        assert engine.facts.groups == ("full", "swa:128") and engine.facts.law == "llama-cpp-python@0.3"
        assert hits(engine, A, B, B2, A, A) == [0, 1026, 17, 17, 1038]


def test_window_cache_claims_more_than_it_holds(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    """The defect of 0.3.36: a hit whose window is gone changes the answer, and memory and law both say so."""
    short = [*A[:600], *range(9)]
    logits = frozenset({Feature.LOGITS})
    spec = engine_spec(NAME, n_threads=1, n_ubatch=128, swa_full=False)
    with started(spec, checkpoint("tiny-gemma3"), tmp_path) as engine:
        law = make_law(engine.facts.law or "", engine.facts.law_options)
        cold = ask(engine, short, features=logits)
        engine.reset()
        requests = [TokenRequest(request_id="r", ids=tuple(ids), features=logits) for ids in (A, short)]
        for request in requests:
            expected = law.send(request)
            warm = engine.send(request)
            law.finish(request, warm.output_ids)
        assert (warm.hit_len, warm.backed_len) == (expected.hit_len, expected.backed_len) == (600, 0)
        largest, shift = (np.abs(x).max() for x in (cold.native["logits"], _difference(warm, cold)))
        assert shift > largest  # the logits are not merely rounded otherwise


def _difference(warm: Reply, cold: Reply) -> np.ndarray:
    return np.subtract(warm.native["logits"], cold.native["logits"])


def test_recurrent_state_is_recomputed(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    with started(engine_spec(NAME, n_threads=1), checkpoint("tiny-qwen3.5"), tmp_path) as engine:
        assert engine.facts.law == "llama-cpp-python@0.3"
        assert hits(engine, A, A, B, B2) == [0, 1038, 0, 0]


@pytest.mark.fault("killed between requests", "llama-cpp-python (real)", "was killed by signal SIGKILL", 4)
def test_worker_killed_between_requests(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    with started(engine_spec(NAME, n_threads=1), checkpoint("tiny-qwen3"), tmp_path) as engine:
        os.kill(engine._worker._process.child.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="was killed by signal SIGKILL"):
            ask(engine, A)


def test_worker_that_cannot_load(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"(?s)cannot load the model.*requires flash_attn"):
        LlamaCppPythonAdapter().start(engine_spec(NAME, type_v="q8_0"), checkpoint("tiny-qwen3"), tmp_path)
