"""The reference engine through its adapter: facts, replies, refusals and start-up errors."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.base import EngineSpec
from adapters.reference.adapter import ReferenceAdapter
from adapters.reference.options import ReferenceOptions
from checkpoints import Checkpoint
from reference_engine.laws.registry import make_law
from vocabulary.engine import Engine, Mode, TokenRequest
from vocabulary.errors import EngineUnavailable, HitparityError, LawDoesNotCover, RequestRefused, UsageError

LAWS: dict[str, dict[str, Any]] = {
    "vllm@0.32": {"block_size": 32},
    "sglang@0.5.23": {"page_size": 16},
    "llama.cpp": {"n_parallel": 2},
}
GRANULE = {"vllm@0.32": 32, "sglang@0.5.23": 16, "llama.cpp": 1}


def spec_for(law: str | None, *, dtype: str = "auto", python: Path | None = None, **options: Any) -> EngineSpec:
    return EngineSpec(
        engine="reference",
        version=ReferenceAdapter.default_version,
        mode=Mode.WORKER,
        law=law,
        dtype=dtype,
        python=python,
        options=ReferenceOptions.model_validate({"threads": 1, "pool_tokens": 4096} | options),
    )


@pytest.fixture(scope="module", params=LAWS)
def engine(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    spec = spec_for(request.param, law_options=LAWS[request.param])
    started = ReferenceAdapter().start(spec, checkpoint("tiny-qwen3"), tmp_path_factory.mktemp("reference"))
    yield started
    started.close()


def ids(length: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(2048) for _ in range(length))


@pytest.mark.live("reference")
def test_facts_are_read_back_and_the_law_is_named(engine: Engine) -> None:
    facts = engine.facts
    assert facts.law is not None and facts.emulated
    assert facts.granule == GRANULE[facts.law]
    assert make_law(facts.law, facts.law_options).pool_tokens == facts.options["pool_tokens"] == 4096
    assert facts.can_salt == (facts.law != "llama.cpp")
    assert (facts.dtype, facts.options["compute_dtype"], facts.notes) == ("float32", "float32", ())


@pytest.mark.live("reference")
def test_cold_warm_and_reset(engine: Engine) -> None:
    prompt, granule = ids(600, 1), engine.facts.granule
    request = TokenRequest(request_id="a", ids=prompt, max_tokens=3)
    engine.reset()
    cold, warm = engine.send(request), engine.send(request)
    assert (cold.hit_len, cold.position_start, cold.steps) == (0, 0, ((0, 600),))
    assert warm.hit_len == warm.position_start == 599 // granule * granule
    assert warm.steps == ((warm.position_start, 600),)
    assert warm.output_ids == cold.output_ids
    assert warm.first_logprob == pytest.approx(cold.first_logprob, abs=1e-4)
    assert cold.ttft_ns is not None and 0 < cold.ttft_ns <= cold.done_ns - cold.sent_ns
    assert engine.reset() and engine.send(request).hit_len == 0


@pytest.mark.live("reference")
def test_the_law_predicts_its_own_engine_evictions_included(engine: Engine) -> None:
    assert engine.facts.law is not None
    engine.reset()
    law = make_law(engine.facts.law, engine.facts.law_options)
    rng = random.Random(7)
    stems = [ids(1500, seed) for seed in range(4)]
    for number in range(24):
        prompt = rng.choice(stems)[: rng.randrange(1, 1500)] + ids(rng.randrange(1, 30), 100 + number)
        request = TokenRequest(request_id=f"r{number}", ids=prompt, max_tokens=rng.randrange(1, 5))
        expected, reply = law.send(request), engine.send(request)
        law.finish(request, reply.output_ids)
        assert (reply.hit_len, reply.position_start) == (expected.hit_len, expected.position_start)


@pytest.mark.live("reference")
def test_namespaces_are_kept_apart_or_refused(engine: Engine) -> None:
    prompt = ids(100, 2)
    salted = [TokenRequest(request_id=salt, ids=prompt, namespace=salt) for salt in "ab"]
    if not engine.facts.can_salt:
        with pytest.raises(RequestRefused, match="salt"):
            engine.send(salted[0])
        return
    assert [engine.send(request).hit_len for request in salted] == [0, 0]
    assert engine.send(salted[0]).hit_len == 99 // engine.facts.granule * engine.facts.granule


@pytest.mark.live("reference")
@pytest.mark.parametrize(
    ("bad", "why"),
    [((), "empty"), ((2048,), "outside the vocabulary"), ((1,) * 40000, "context"), ((1,) * 4096, "pool")],
)
def test_a_bad_request_is_refused_and_the_engine_lives(engine: Engine, bad: tuple[int, ...], why: str) -> None:
    with pytest.raises(RequestRefused, match=why):
        engine.send(TokenRequest(request_id="bad", ids=bad))
    assert len(engine.send(TokenRequest(request_id="good", ids=(1, 2, 3))).output_ids) == 1


@pytest.mark.live("reference")
def test_bf16_weights_say_what_they_are_computed_in(checkpoint: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    engine = ReferenceAdapter().start(spec_for(None, dtype="bfloat16"), checkpoint("tiny-llama"), tmp_path)
    try:
        facts = engine.facts
        assert (facts.law, facts.dtype) == ("vllm@0.32", "bfloat16")
        assert (facts.options["compute_dtype"] == "float32") == any(
            "computed in float32" in note for note in facts.notes
        )
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("law", "options", "error", "why"),
    [
        ("vlm@0.32", {}, UsageError, "did you mean 'vllm@0.32'"),
        ("vllm@0.32", {"law_options": {"page_size": 16}}, UsageError, "page_size"),
        ("vllm@0.32", {"law_options": {"block_size": 0}}, LawDoesNotCover, "block_size"),
        ("vllm@0.32", {"pool_tokens": 8}, UsageError, "pool_tokens = 8"),
        ("llama-cpp-python@0.3", {}, UsageError, "whole prompt"),
    ],
)
def test_a_law_that_cannot_be_followed_is_refused_before_anything_starts(
    law: str, options: dict[str, Any], error: type[HitparityError], why: str
) -> None:
    with pytest.raises(error, match=why):
        ReferenceAdapter().check(spec_for(law, **options))


def test_an_unknown_number_type_or_device_is_refused() -> None:
    with pytest.raises(UsageError, match="float16"):
        ReferenceAdapter().check(spec_for(None, dtype="float16"))
    with pytest.raises(UsageError, match="tpu"):
        ReferenceAdapter().check(dataclasses.replace(spec_for(None), device="tpu"))


def test_a_budget_that_could_starve_a_prefill_is_refused() -> None:
    with pytest.raises(ValueError, match="at least prefill_grid"):
        ReferenceOptions(max_num_batched_tokens=256)


def test_an_architecture_without_decoder_is_refused_before_anything_starts(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    model = checkpoint("tiny-qwen3")
    shutil.copytree(model.directory, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "mamba"}))
    with pytest.raises(UsageError, match="supported: llama, qwen3"):
        ReferenceAdapter().start(spec_for(None), dataclasses.replace(model, directory=tmp_path / "model"), tmp_path)
    assert not (tmp_path / "engine.log").exists()


def test_an_interpreter_without_torch_is_named_with_the_remedy(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    bare = tmp_path / "bare" / "bin" / Path(sys.executable).name
    spec = spec_for(None, python=bare if bare.exists() else tmp_path / "bare" / "bin" / "python")
    with pytest.raises(EngineUnavailable, match=r"pip install 'hitparity\[reference\]'"):
        ReferenceAdapter().start(spec, checkpoint("tiny-qwen3"), tmp_path)
