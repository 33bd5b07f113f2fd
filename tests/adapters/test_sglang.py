"""SGLang, live on tiny-qwen3: what is hit, where computation starts, what is refused, and what a crash leaves."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from adapters.base import EngineSpec
from adapters.sglang.adapter import SglangAdapter
from adapters.sglang.engine import SglangEngine
from checkpoints import Checkpoint
from reference_engine.laws.registry import make_law
from vocabulary.engine import Feature, Mode, Reply, TokenRequest
from vocabulary.errors import EngineFailed, EngineUnavailable, RequestRefused, UsageError

pytestmark = pytest.mark.live("sglang")
CHUNK = 256


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Checkpoint]) -> Checkpoint:
    return checkpoint("tiny-qwen3")


@pytest.fixture(scope="module")
def engine_at(
    engine_spec: Callable[..., EngineSpec], model: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], SglangEngine]]:
    """Page size to a running engine; each starts once. Page 64 prefills in chunks."""
    running: dict[int, SglangEngine] = {}

    def at(page: int) -> SglangEngine:
        if page not in running:
            chunk = {"chunked_prefill_size": CHUNK} if page == 64 else {}
            spec = engine_spec("sglang", page_size=page, **chunk)
            running[page] = SglangAdapter().start(spec, model, tmp_path_factory.mktemp(f"page{page}"))
        return running[page]

    yield at
    for engine in running.values():
        engine.close()


@pytest.fixture
def prompts(model: Checkpoint) -> dict[str, tuple[int, ...]]:
    """A and B share 1026 tokens; C is B with index 17 changed."""
    a = np.random.default_rng(7).integers(300, model.vocab_size, 1038)
    b, c = a.copy(), a.copy()
    b[1026:] = (a[1026:] - 300 + 1) % (model.vocab_size - 300) + 300
    c[:] = b
    c[17] = 301 if b[17] == 300 else 300
    return {name: tuple(ids.tolist()) for name, ids in {"A": a, "B": b, "C": c}.items()}


def send(engine: SglangEngine, ids: tuple[int, ...], **more: object) -> Reply:
    return engine.send(TokenRequest(request_id="r", ids=ids, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("page", "hits"),
    [
        (1, [0, 1026, 17, 1037, 1037, 1037, 1037]),
        (16, [0, 1024, 16, 1024, 1024, 1024, 1024]),
        (64, [0, 1024, 0, 1024, 1024, 1024, 1024]),
    ],
)
def test_hits_and_position_starts(
    engine_at: Callable[[int], SglangEngine], prompts: dict[str, tuple[int, ...]], page: int, hits: list[int]
) -> None:
    engine = engine_at(page)
    assert engine.facts.granule == page
    assert engine.facts.law == "sglang@0.5.23"
    law = make_law(engine.facts.law, engine.facts.law_options)
    assert engine.reset()
    cold: dict[str, Reply] = {}
    for number, (name, hit) in enumerate(zip("ABCAABC", hits, strict=True)):
        request = TokenRequest(request_id=f"{number}", ids=prompts[name])
        reply, expected = engine.send(request), law.send(request)
        law.finish(request, reply.output_ids)
        assert (reply.hit_len, reply.position_start) == (hit, hit), f"send {number} of {name}"
        assert expected.hit_len == hit
        assert reply.steps is not None
        assert [span[0] for span in reply.steps[1:]] == [span[1] for span in reply.steps[:-1]]
        assert reply.steps[-1][1] == reply.prompt_len == 1038
        assert reply.position_source == "probe: ForwardBatch.positions"
        assert reply.output_ids == cold.setdefault(name, reply).output_ids
        assert reply.sent_ns < (reply.first_token_ns or 0) <= reply.done_ns


def test_chunks_are_steps(engine_at: Callable[[int], SglangEngine], prompts: dict[str, tuple[int, ...]]) -> None:
    engine = engine_at(64)
    engine.reset()
    spans = [(start, min(start + CHUNK, 1038)) for start in range(0, 1038, CHUNK)]
    assert send(engine, prompts["A"]).steps == tuple(spans)
    assert engine.facts.options["chunked_prefill_size"] == CHUNK


@pytest.mark.parametrize("page", [1, 16, 64])
def test_repeats_around_the_page(engine_at: Callable[[int], SglangEngine], model: Checkpoint, page: int) -> None:
    engine, draw = engine_at(page), np.random.default_rng(page)
    for length in (1, 2, page, page + 1, page + 2, 2 * page, 2 * page + 1):
        ids = tuple(draw.integers(300, model.vocab_size, length).tolist())
        engine.reset()
        assert [send(engine, ids).hit_len for _ in range(3)] == [0, *[(length - 1) // page * page] * 2]


def test_generated_tokens_are_kept(
    engine_at: Callable[[int], SglangEngine], prompts: dict[str, tuple[int, ...]]
) -> None:
    engine = engine_at(1)
    engine.reset()
    first = send(engine, prompts["A"][:50], max_tokens=9)
    assert len(first.output_ids) == 9
    # The last generated token has no KV.
    assert send(engine, (*prompts["A"][:50], *first.output_ids, 300)).hit_len == 58


def test_reset_and_salt(engine_at: Callable[[int], SglangEngine], prompts: dict[str, tuple[int, ...]]) -> None:
    engine, ids = engine_at(16), prompts["B"][:100]
    hits = []
    for namespace in (None, None, "red", "red", "blue"):
        if not hits:
            assert engine.reset()
        hits.append(send(engine, ids, namespace=namespace).hit_len)
    assert hits == [0, 96, 0, 96, 0]
    assert engine.reset()
    assert [send(engine, ids, namespace=namespace).hit_len for namespace in (None, "red")] == [0, 0]


def test_logprobs(engine_at: Callable[[int], SglangEngine], prompts: dict[str, tuple[int, ...]]) -> None:
    engine, ids = engine_at(1), prompts["C"]
    engine.reset()
    cold = send(engine, ids, features=frozenset({Feature.LOGPROB}))
    warm = send(engine, ids, features=frozenset({Feature.LOGPROB}))
    capped = send(engine, ids, features=frozenset({Feature.PROMPT_LOGPROBS}))
    assert (cold.hit_len, warm.hit_len, capped.hit_len) == (0, 1037, 0)
    assert cold.first_logprob is not None
    assert warm.first_logprob == pytest.approx(cold.first_logprob, abs=1e-4)
    assert cold.first_logprob < 0
    assert send(engine, ids).first_logprob is None


def test_together(engine_at: Callable[[int], SglangEngine], prompts: dict[str, tuple[int, ...]]) -> None:
    engine = engine_at(16)
    engine.reset()
    requests = [TokenRequest(request_id=name, ids=prompts[name]) for name in "ABC"]
    together = engine.send_together(requests)
    assert [reply.request_id for reply in together] == ["A", "B", "C"]
    assert all(reply.hit_len == reply.position_start for reply in together)
    assert [reply.output_ids for reply in together] == [send(engine, prompts[name]).output_ids for name in "ABC"]


def test_refused_and_alive(engine_at: Callable[[int], SglangEngine], prompts: dict[str, tuple[int, ...]]) -> None:
    engine = engine_at(16)
    longest = engine.facts.context_len
    assert longest == 32762
    for ids, tokens, why in (
        ((), 1, "empty"),
        ((5, 2048), 1, "token ID 2048 is outside"),
        ((-1, 5), 1, "token ID -1 is outside"),
        ((5,) * longest, 1, "exceed"),
        ((5,) * 40, longest, "exceed"),
    ):
        with pytest.raises(RequestRefused, match=why):
            send(engine, ids, max_tokens=tokens)
    assert send(engine, prompts["A"]).output_ids


def test_attach(
    engine_at: Callable[[int], SglangEngine],
    engine_spec: Callable[..., EngineSpec],
    checkpoint: Callable[[str], Checkpoint],
    prompts: dict[str, tuple[int, ...]],
    tmp_path: Path,
) -> None:
    launched, adapter = engine_at(16), SglangAdapter()
    spec = dataclasses.replace(engine_spec("sglang", mode=Mode.ATTACH, page_size=16), url=launched.server.url)
    engine = adapter.start(spec, checkpoint("tiny-qwen3"), tmp_path)
    assert engine.facts == dataclasses.replace(launched.facts, mode=Mode.ATTACH)
    assert engine.reset()
    replies = [send(engine, prompts["A"]) for _ in range(2)]
    assert [reply.hit_len for reply in replies] == [0, 1024]
    assert [(reply.position_start, reply.position_source, reply.steps) for reply in replies] == [
        (None, "none", None)
    ] * 2
    engine.close()
    assert send(launched, prompts["A"]).hit_len == 1024, "closing an attached engine must leave the server alone"
    with pytest.raises(EngineUnavailable, match="runs a 'qwen3' model"):
        adapter.start(spec, checkpoint("tiny-llama"), tmp_path)
    other_page = dataclasses.replace(spec, options=engine_spec("sglang", page_size=32).options)
    with pytest.raises(UsageError, match=r"page_size = 32, the server at .* runs 16"):
        adapter.start(other_page, checkpoint("tiny-qwen3"), tmp_path)
    with pytest.raises(EngineUnavailable, match="Is an SGLang server running"):
        adapter.start(dataclasses.replace(spec, url="http://127.0.0.1:9"), checkpoint("tiny-qwen3"), tmp_path)


@pytest.mark.fault("its scheduler killed", "sglang (real)", "Log: ...engine.log", 4)
def test_a_dead_scheduler_is_reported_and_nothing_is_left(
    engine_spec: Callable[..., EngineSpec], model: Checkpoint, tmp_path: Path
) -> None:
    engine = SglangAdapter().start(engine_spec("sglang"), model, tmp_path)
    assert engine.launched is not None
    group, scratch = engine.launched.process.child.pid, Path(engine.launched.scratch.name)
    try:
        assert send(engine, (5, 6, 7)).hit_len == 0
        (scheduler,) = [pid for pid, name in members(group).items() if name.startswith("sglang::sche")]
        os.kill(scheduler, signal.SIGKILL)
        with pytest.raises(EngineFailed, match=r"engine\.log"):
            send(engine, (5, 6, 7))
    finally:
        engine.close()
    deadline = time.monotonic() + 10
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members(group) == {}
    assert not scratch.exists()


@pytest.mark.fault("refused its own arguments", "sglang (real)", "exited with status 2 while starting", 4)
def test_death_while_starting(engine_spec: Callable[..., EngineSpec], model: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"exited with status 2 while starting[\s\S]*invalid choice: 'abacus'"):
        SglangAdapter().start(engine_spec("sglang", attention_backend="abacus"), model, tmp_path)


def members(group: int) -> dict[int, str]:
    """Living processes of a process group, by name."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            before, _, after = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, _parent, pgrp, *_ = after.split()
        if int(pgrp) == group and state != "Z":
            found[int(entry.name)] = before.partition("(")[2]
    return found
