"""llama-server against its law, request by request, on every kind of memory; and what the judge makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.base import EngineSpec
from adapters.llama_cpp.adapter import LlamaCppAdapter
from adapters.llama_cpp_python.adapter import LlamaCppPythonAdapter
from adapters.registry import adapter_for
from checkpoints import Checkpoint
from harness.judge import Judge, Judgement
from harness.records import FindingKind
from vocabulary.engine import Engine, Reply, TokenRequest

Specs = Callable[..., EngineSpec]
Models = Callable[[str], Checkpoint]
REQUESTS = 60
LONGEST = 420
WINDOW, N_UBATCH = 128, 64
EDGES = (1, 4, 5, N_UBATCH, N_UBATCH + 4, N_UBATCH + 5, WINDOW, WINDOW + N_UBATCH, 256, LONGEST)
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama.cpp", "tiny-qwen3", {"n_parallel": 3, "cache_ram_mib": 1, "n_cache_reuse": 16}),
    ("llama.cpp", "tiny-qwen3.5", {"n_parallel": 2, "cache_ram_mib": 2, "n_ctx_checkpoints": 3}),
    ("llama.cpp", "tiny-gemma3", {"n_parallel": 2, "n_batch": 96, "checkpoint_min_step": 16}),
    ("llama.cpp", "tiny-gemma3", {"n_parallel": 3, "kv_unified": True, "n_ctx": 1280, "cache_ram_mib": 8192}),
    ("llama-cpp-python", "tiny-gemma3", {"swa_full": False}),
]


class Watched:
    """An engine with the judge beside it."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._judge = engine, Judge(engine.facts)

    def ask(self, ids: Sequence[int], max_tokens: int = 1) -> tuple[Reply, Judgement]:
        """One request and its judgement."""
        request = TokenRequest(request_id="r", ids=tuple(ids), max_tokens=max_tokens)
        reply = self.engine.send(request)
        return reply, self._judge.judge(request, reply)

    def reset(self) -> None:
        """Both forget."""
        assert self.engine.reset()
        self._judge.reset()


def kinds(judgement: Judgement) -> set[FindingKind]:
    return {finding.kind for finding in judgement.findings}


def derived(draw: random.Random, earlier: list[list[int]]) -> list[int]:
    """A fresh prompt, or an earlier sequence repeated, trimmed, branched, edited, shortened or continued."""
    fresh = [draw.randrange(128) for _ in range(max(1, draw.choice(EDGES) + draw.randrange(-1, 2)))]
    if not earlier or draw.random() < 0.15:
        return fresh[:LONGEST]
    base = draw.choice(earlier[-5:])
    at = draw.randrange(len(base))
    near_end = max(0, len(base) - draw.choice((0, 1, 4, 5, 6, N_UBATCH + 5, N_UBATCH + 6)))
    made = (
        base,
        base[:-1],
        base + fresh[:30],
        base[: at + 1],
        base[:at] + fresh[:60],
        base[:near_end] + fresh[:40],
        base[:at] + base[at + 20 :],
        base[:at] + fresh[:1] + base[at + 1 :],
    )
    return (draw.choice(made) or fresh)[:LONGEST]


@pytest.mark.live("llama.cpp", "llama-cpp-python")
@pytest.mark.parametrize(("name", "model", "options"), CASES, ids=str)
def test_random_requests_are_explained(
    engine_spec: Specs, checkpoint: Models, tmp_path: Path, name: str, model: str, options: dict[str, Any]
) -> None:
    draw, earlier = random.Random(11), list[list[int]]()
    spec = engine_spec(name, n_threads=1, n_ubatch=N_UBATCH, **options)
    engine = adapter_for(name).start(spec, checkpoint(model), tmp_path)
    try:
        watched, hit = Watched(engine), 0
        for number in range(REQUESTS):
            if number == REQUESTS // 2:
                watched.reset()
            ids = derived(draw, earlier)
            reply, judgement = watched.ask(ids, draw.choice((1, 1, 2, 9)))
            expected = judgement.expectation
            assert expected is not None
            wrong = kinds(judgement) - {FindingKind.APPROXIMATE, FindingKind.UNBACKED}
            assert not wrong, (number, ids, judgement.findings)
            if reply.backed_len is not None:
                assert reply.backed_len == (expected.hit_len if expected.backed_len is None else expected.backed_len)
            hit += bool(reply.hit_len)
            earlier.append([*ids, *reply.output_ids])
        assert hit > REQUESTS // 5
    finally:
        engine.close()


@pytest.mark.live("llama.cpp")
def test_moved_chunks_are_a_finding_that_stays(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    engine = LlamaCppAdapter().start(
        engine_spec("llama.cpp", n_threads=1, n_cache_reuse=64), checkpoint("tiny-qwen3"), tmp_path
    )
    try:
        watched, draw = Watched(engine), random.Random(2)
        whole = [draw.randrange(128) for _ in range(500)]
        assert not watched.ask(whole)[1].findings
        for hit in (400, 407):
            reply, judgement = watched.ask([*whole[:200], *whole[300:], *range(8)])
            assert reply.hit_len == hit and kinds(judgement) == {FindingKind.APPROXIMATE}
            assert judgement.expectation is not None and judgement.expectation.approximate_len == 200
    finally:
        engine.close()


@pytest.mark.live("llama.cpp")
def test_checkpoint_of_another_prompt_is_unbacked(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    """b11549 resumes from a one-token checkpoint of a prompt that began with another token; the answer changes."""
    engine = LlamaCppAdapter().start(
        engine_spec("llama.cpp", n_threads=1, n_ubatch=N_UBATCH), checkpoint("tiny-qwen3.5"), tmp_path
    )
    try:
        watched, draw = Watched(engine), random.Random(3)
        other, prompt = ([first, *(draw.randrange(128) for _ in range(count))] for first, count in ((1, 4), (2, 599)))
        branch = [*prompt[:100], *(draw.randrange(128) for _ in range(50))]
        for ids in (other, prompt):
            assert not watched.ask(ids)[1].findings
        warm, judgement = watched.ask(branch, 8)
        assert warm.hit_len == 1 and kinds(judgement) == {FindingKind.UNBACKED}
        watched.reset()
        cold, judgement = watched.ask(branch, 8)
        assert not judgement.findings and cold.output_ids != warm.output_ids
    finally:
        engine.close()


@pytest.mark.live("llama-cpp-python")
def test_hit_on_a_window_with_a_hole_is_unbacked(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    spec = engine_spec("llama-cpp-python", n_threads=1, n_ubatch=N_UBATCH, swa_full=False)
    engine = LlamaCppPythonAdapter().start(spec, checkpoint("tiny-gemma3"), tmp_path)
    try:
        watched, draw = Watched(engine), random.Random(4)
        prompt = [draw.randrange(128) for _ in range(500)]
        watched.ask(prompt)
        reply, judgement = watched.ask([*prompt[:200], *range(9)])
        assert (reply.hit_len, reply.backed_len) == (200, 0)
        assert kinds(judgement) == {FindingKind.UNBACKED}
        assert "by the engine's cache" in judgement.findings[0].detail
    finally:
        engine.close()
