"""Every system's law with a real forward: full attention, sliding windows, recurrent states, drafts.

For each law and model the hits are those of the law asked alone, positions start where it says, and what is computed
behind a hit equals what a cold run computes: to the bit where the run resumes on the kernels' grid, else within
`OFF_GRID_TOLERANCE`. Then four broken hand-overs, which this comparison has to catch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import reference_engine.runner
from adapters.base import EngineSpec
from adapters.reference.adapter import ReferenceAdapter
from adapters.reference.law import sized_law
from adapters.reference.options import ReferenceOptions
from checkpoints import Checkpoint
from reference_engine.attention import extend_mask
from reference_engine.config import ModelConfig
from reference_engine.engine import ReferenceEngine
from reference_engine.laws.base import Expectation
from reference_engine.laws.registry import make_law
from reference_engine.load import EngineConfig, load_engine
from reference_engine.request import Completion
from reference_engine.runner import OFF_GRID_TOLERANCE
from tests.reference_engine.reference_engines import difference
from vocabulary.engine import Mode, TokenRequest
from vocabulary.errors import HitparityError, UsageError
from vocabulary.ledger import Cause

GRID = 64
HYBRID: dict[str, Any] = {"groups": ["full:64", "gdn:64"]}
FINE: dict[str, Any] = {"groups": ["full:64", "gdn:64"], "prefix_match_unit": 16}
MTP: dict[str, Any] = {"method": "mtp", "num_speculative_tokens": 2}
VLLMS = ("vllm@0.23", "vllm@0.30", "vllm@0.33", "vllm-ascend@0.23")
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(("tiny-gemma3", law, {}) for law in VLLMS),
    *(("tiny-qwen3.5", law, HYBRID) for law in VLLMS),
    *(("tiny-qwen3.5", law, HYBRID | {"max_num_batched_tokens": 128}) for law in VLLMS[:2]),
    ("tiny-qwen3.5", "vllm@0.30", FINE),
    *(("tiny-qwen3.5-mtp", law, HYBRID | MTP) for law in VLLMS),
    *(("tiny-qwen3.5-mtp", "sglang@0.5.23", {"page_size": page, "drafts": 2}) for page in (1, 64)),
    ("tiny-qwen3.5-mtp", "llama.cpp", {"drafts": 2}),
    ("tiny-qwen3.5-mtp", "deepinfer@0.1.0", {"drafts": 2}),
    ("tiny-qwen3.5-mtp", "tensorrt-llm@v2", {"tokens_per_block": 32, "periodic_snapshot_interval": 64, "drafts": 2}),
    ("tiny-qwen3.5-mtp", "vllm@0.33", HYBRID),
    ("tiny-gemma3", "sglang@0.5.23", {"page_size": 16}),
    ("tiny-qwen3.5", "sglang@0.5.23", {"page_size": 1}),
    ("tiny-qwen3.5", "sglang@0.5.23", {"page_size": 64}),
    ("tiny-gemma3", "llama.cpp", {}),
    ("tiny-qwen3.5", "llama.cpp", {}),
    ("tiny-gemma3", "tensorrt-llm@v1", {"tokens_per_block": 32}),
    ("tiny-llama", "tensorrt-llm@v1", {"tokens_per_block": 32}),
    ("tiny-qwen3.5", "tensorrt-llm@v2", {"tokens_per_block": 32, "periodic_snapshot_interval": 64}),
    ("tiny-llama", "deepinfer@0.1.0", {}),
]


@dataclass(frozen=True)
class Pair:
    """An engine that keeps its cache, one that is emptied before each request, and the law asked alone."""

    warm: ReferenceEngine
    cold: ReferenceEngine
    predicted: Callable[[TokenRequest, tuple[int, ...]], Expectation]


def start(model: Checkpoint, law: str, options: dict[str, Any]) -> Pair:
    """`drafts` among the options is the engine's, for laws that do not ask."""
    groups = ModelConfig.read(model.directory).groups
    options = dict(options)
    drafts = options.pop("drafts", 0)
    law_id, sized = sized_law(law, options, 4096, groups)
    config = EngineConfig(
        law=law_id,
        law_options=sized,
        pool_tokens=16384,
        prefill_grid=GRID,
        max_num_batched_tokens=512,
        max_num_seqs=4,
        threads=1,
        num_speculative_tokens=drafts,
    )
    alone = make_law(law_id, sized)

    def predicted(request: TokenRequest, output_ids: tuple[int, ...]) -> Expectation:
        expectation = alone.send(request)
        alone.finish(request, output_ids)
        return expectation

    return Pair(*(load_engine(model.directory, config).engine for _ in "ab"), predicted)  # type: ignore[arg-type]


def ask(engine: ReferenceEngine, request: TokenRequest) -> Completion:
    completion = engine.generate([request])[0]
    engine.law.check_integrity()
    return completion


def prompts() -> list[tuple[int, ...]]:
    """A prompt, repeats, siblings before and behind their junction, a longer and a shorter one, and a new one."""
    rng = random.Random(7)
    trunk = [rng.randrange(2048) for _ in range(330)]
    tails = [[rng.randrange(2048) for _ in range(length)] for length in (40, 70, 130)]
    made = [trunk, trunk, trunk, trunk[:200] + tails[0], trunk[:200] + tails[1], trunk[:200] + tails[0]]
    made += [trunk + tails[2], trunk[:129], trunk[:128], tails[2], trunk]
    return [tuple(ids) for ids in made]


@pytest.mark.parametrize(("model", "law", "options"), CASES, ids=str)
def test_warm_equals_cold(
    checkpoint: Callable[[str], Checkpoint], model: str, law: str, options: dict[str, Any]
) -> None:
    pair = start(checkpoint(model), law, options)
    hits = drafted = accepted = 0
    for number, ids in enumerate(prompts()):
        request = TokenRequest(request_id=str(number), ids=ids, max_tokens=7)
        warm = ask(pair.warm, request)
        pair.cold.reset()
        cold = ask(pair.cold, request)
        expected = pair.predicted(request, warm.output_ids)
        assert warm.expectation == expected, number
        assert cold.hand_over.position_start == 0
        assert warm.hand_over.position_start == expected.position_start
        assert warm.steps[0][0] == expected.position_start and warm.steps[-1][1] == len(ids)
        off = difference(warm.first_logits, cold.first_logits)
        if expected.backed_len is not None:  # the engine computes on memory that holds something else
            assert off > OFF_GRID_TOLERANCE[torch.float32], number
            continue
        assert warm.output_ids == cold.output_ids, number
        assert off <= OFF_GRID_TOLERANCE[torch.float32], (number, expected.hit_len, off)
        if expected.position_start % GRID == 0 and on_grid(warm, cold):
            assert torch.equal(warm.first_logits, cold.first_logits), (number, expected.hit_len)
        hits += expected.hit_len > 0
        drafted, accepted = drafted + warm.drafted, accepted + warm.accepted
    assert hits >= 2 or law.startswith("deepinfer")
    if options.get("num_speculative_tokens") or options.get("drafts"):
        assert 0 < accepted < drafted, (accepted, drafted)


def test_a_state_kept_within_a_step_of_drafts(checkpoint: Callable[[str], Checkpoint]) -> None:
    """SGLang keeps the state at 64 while the step that passes it goes further; whoever resumes there needs that one."""
    options = {"page_size": 64, "mamba_track_interval": 64, "drafts": 2}
    pair = start(checkpoint("tiny-qwen3.5-mtp"), "sglang@0.5.23", options)
    passed = 0
    for length in range(56, 64):
        ids = tuple(random.Random(length).choices(range(2048), k=length))
        first = ask(pair.warm, TokenRequest(request_id=f"{length}", ids=ids, max_tokens=16))
        passed += first.accepted > 0
        again = TokenRequest(request_id=f"{length} again", ids=(*ids, *first.output_ids[:15], 7), max_tokens=1)
        warm = ask(pair.warm, again)
        pair.cold.reset()
        cold = ask(pair.cold, again)
        assert (warm.expectation.hit_len, cold.expectation.hit_len) == (64, 0)
        assert difference(warm.first_logits, cold.first_logits) <= OFF_GRID_TOLERANCE[torch.float32], length
    assert passed > 4


def test_drafts_that_the_rule_depends_on_are_told_to_the_rule(checkpoint: Callable[[str], Checkpoint]) -> None:
    options = ReferenceOptions(num_speculative_tokens=2)
    spec = EngineSpec(engine="reference", version="source", mode=Mode.WORKER, options=options, law="vllm@0.30")
    with pytest.raises(UsageError, match="write num_speculative_tokens in law_options"):
        ReferenceAdapter().check(spec)
    with pytest.raises(UsageError, match="no head that drafts"):
        start(checkpoint("tiny-llama"), "sglang@0.5.23", {"page_size": 16, "drafts": 2})


def on_grid(*runs: Completion) -> bool:
    """Whether all steps end on the grid or at the prompt's end."""
    return all(end % GRID == 0 or end == run.request.prompt_len for run in runs for _, end in run.steps)


def position_off_by_one(engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine.runner._call

    def late(*parts: Any, **options: Any) -> Any:
        call = made(*parts, **options)
        return replace(call, positions=call.positions + (1 if int(call.positions[0]) else 0))

    monkeypatch.setattr(engine.runner, "_call", late)


def window_short_by_one(engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(start: int, end: int, *rest: Any, first_key: int = 0, window: int | None = None) -> Any:
        return extend_mask(start, end, *rest, first_key=first_key, window=window and window - 1)

    monkeypatch.setattr(reference_engine.runner, "extend_mask", short)


def stale_state(engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.law, "state", lambda lease, group, position, state=engine.law.state: 0)


def shared_block_overwritten(engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    admit = engine.law.admit

    def clobber(request: TokenRequest) -> Any:
        lease = admit(request)
        if lease.expectation.hit_len:
            pool = engine.runner.decoder.pools[engine._full]
            pool.keys[:, engine.law.slots(lease, engine._full, 5, 6)[0]] = 0  # type: ignore[union-attr]
        return lease

    monkeypatch.setattr(engine.law, "admit", clobber)


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("tiny-qwen3.5", position_off_by_one),
        ("tiny-qwen3.5", stale_state),
        ("tiny-qwen3.5", shared_block_overwritten),
        ("tiny-gemma3", window_short_by_one),
        ("tiny-gemma3", position_off_by_one),
    ],
)
def test_a_broken_hand_over_is_caught(
    checkpoint: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch, model: str, fault: Callable[..., None]
) -> None:
    options = HYBRID if model == "tiny-qwen3.5" else {}
    pair = start(checkpoint(model), "vllm@0.32", options)
    request = TokenRequest(request_id="a", ids=prompts()[0])
    cold = ask(pair.cold, request).first_logits
    ask(pair.warm, request)
    fault(pair.warm, monkeypatch)
    warm = ask(pair.warm, request)
    assert warm.expectation.hit_len > 0
    assert difference(warm.first_logits, cold) > 10 * OFF_GRID_TOLERANCE[torch.float32]


@pytest.mark.parametrize(("law", "options"), [("vllm@0.32", HYBRID), ("sglang@0.5.23", {"page_size": 64})])
def test_a_traced_hand_over_tells_states_and_slots(
    checkpoint: Callable[[str], Checkpoint], law: str, options: dict[str, Any]
) -> None:
    engine = start(checkpoint("tiny-qwen3.5"), law, options).warm
    engine.trace_hand_over = True
    request = TokenRequest(request_id="a", ids=prompts()[0], max_tokens=2)
    first, second = ask(engine, request), ask(engine, request)
    for completion, restored in ((first, False), (second, True)):
        tables = completion.hand_over.tables
        assert tables is not None and tables.read_only_unchanged
        full, gdn = tables.groups
        start_at = completion.hand_over.position_start
        assert sum(end - begin for begin, end in full.read) == start_at
        assert sum(end - begin for begin, end in full.written) == request.prompt_len - start_at
        assert (gdn.restored is not None) == restored == (start_at > 0)
        assert gdn.restored is None or gdn.restored[0] == start_at
        assert gdn.stored[-1][0] == request.prompt_len
        assert np.array_equal(sorted(position for position, _ in gdn.stored), [position for position, _ in gdn.stored])


def test_groups_that_do_not_fit_the_model_are_named(checkpoint: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(HitparityError, match="do not fit the qwen3_5_text model"):
        start(checkpoint("tiny-qwen3.5"), "vllm@0.32", {"groups": ["full:16", "swa:16:64"]})


def test_moved_chunks_are_rotated_to_where_they_lie(checkpoint: Callable[[str], Checkpoint]) -> None:
    """llama.cpp's `n_cache_reuse`: a first layer's keys depend on token and position only, so they can be checked."""
    pair = start(checkpoint("tiny-llama"), "llama.cpp", {"n_cache_reuse": 32})
    ids = prompts()[0]
    ask(pair.warm, TokenRequest(request_id="whole", ids=ids))
    shorter = TokenRequest(request_id="cut", ids=ids[:100] + ids[140:])
    pair.predicted(TokenRequest(request_id="whole", ids=ids), (0,))
    expected = pair.predicted(shorter, (0,))
    warm, cold = ask(pair.warm, shorter), ask(pair.cold, shorter)
    assert warm.expectation == expected
    assert (expected.hit_len, expected.approximate_len) == (len(shorter.ids) - 1, len(shorter.ids) - 1 - 100)
    pools = [engine.runner.decoder.pools[0] for engine in (pair.warm, pair.cold)]
    keys = [pool.keys[0] for pool in pools]  # type: ignore[union-attr]
    for at in (0, 99, 100, 150, len(shorter.ids) - 2):
        warm_at, cold_at = (places[at] for places in (slots_of(pair.warm, shorter), slots_of(pair.cold, shorter)))
        assert torch.allclose(keys[0][warm_at], keys[1][cold_at], atol=1e-4), at
    assert difference(warm.first_logits, cold.first_logits) > OFF_GRID_TOLERANCE[torch.float32]


def slots_of(engine: ReferenceEngine, request: TokenRequest) -> list[int]:
    """Where the prompt lies: asked of a lease that continues it."""
    lease = engine.law.admit(replace(request, request_id="look"))
    places: list[int] = engine.law.slots(lease, 0, 0, lease.expectation.hit_len).tolist()
    engine.law.release(lease)
    return places


def test_a_fork_and_an_injected_hit_go_on_where_their_source_ended(checkpoint: Callable[[str], Checkpoint]) -> None:
    """DeepInfer has no lookup: a fork shares its parent's blocks and copies the tail, a store injects a prefix."""
    pair = start(checkpoint("tiny-llama"), "deepinfer@0.1.0", {})
    ids = prompts()[0]
    parent = ask(pair.warm, TokenRequest(request_id="parent", ids=ids, max_tokens=3))
    fork = TokenRequest(request_id="fork", ids=ids + parent.output_ids[:2] + (5, 6, 7), fork_of="parent")
    injected = TokenRequest(request_id="injected", ids=(*ids[:300], 9, 9, 9), external_hit=256)
    for request, least in ((fork, len(ids)), (injected, 256)):
        warm = ask(pair.warm, request)
        pair.cold.reset()
        cold = ask(pair.cold, replace(request, fork_of=None, external_hit=None))
        assert warm.expectation.hit_len >= least and cold.expectation.hit_len == 0
        assert warm.hand_over.position_start == warm.expectation.position_start
        assert difference(warm.first_logits, cold.first_logits) <= OFF_GRID_TOLERANCE[torch.float32]


def test_external_replay_computes_a_tail_again_behind_a_cut_window(checkpoint: Callable[[str], Checkpoint]) -> None:
    """DeepInfer with sliding windows: R tokens of an injected hit are computed again; nothing before them is seen."""
    replay = 200
    pair = start(
        checkpoint("tiny-gemma3"), "deepinfer@0.1.0", {"groups": ["full", "swa:128"], "external_replay": replay}
    )
    ids = prompts()[0]
    ask(pair.warm, TokenRequest(request_id="source", ids=ids))
    request = TokenRequest(request_id="injected", ids=(*ids[:300], 9, 9, 9), external_hit=256)
    warm, cold = ask(pair.warm, request), ask(pair.cold, replace(request, external_hit=None))
    assert warm.hand_over.position_start == warm.expectation.position_start == 256 - replay
    assert warm.expectation.ledger.tokens(Cause.REPLAY) == replay
    off = difference(warm.first_logits, cold.first_logits)
    assert OFF_GRID_TOLERANCE[torch.float32] < off < 1  # windows of the first replayed tokens are cut: not a cold run
