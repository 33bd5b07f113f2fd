"""Options of TensorRT-LLM's and DeepInfer's laws: what is taken, what is refused, and where the border lies."""

from __future__ import annotations

from typing import Any

import pytest
from refusing import refuses

from reference_engine.laws.base import Law
from reference_engine.laws.deepinfer.law import DeepInfer
from reference_engine.laws.deepinfer.replay import Mode
from reference_engine.laws.registry import make_law
from reference_engine.laws.tensorrt_llm.v2 import TrtllmV2
from vocabulary.errors import LawDoesNotCover

V1, V2, DEEPINFER = "tensorrt-llm@v1", "tensorrt-llm@v2", "deepinfer@0.1.0"
STATES = {"groups": ["full", "gdn"]}
WINDOW = {"groups": ["full", "swa:128"]}


@pytest.mark.parametrize("law_id", [V1, V2])
def test_a_block_is_a_power_of_two(law_id: str) -> None:
    assert make_law(law_id, {}).granule == 32
    assert [size for size in range(1, 70) if not refuses(law_id, tokens_per_block=size)] == [2, 4, 8, 16, 32, 64]
    assert not refuses(law_id, tokens_per_block=16, groups=["full:16", "swa:16:64"])
    assert refuses(law_id, tokens_per_block=16, groups=["full:32"]) and refuses(law_id, groups=["full:16"])


def settings(**options: Any) -> Any:
    law = make_law(V2, options)
    assert isinstance(law, TrtllmV2)
    return law.settings


def test_numbers_and_lists_of_the_second_manager() -> None:
    for name in ("reuse_match_backoff", "periodic_snapshot_interval", "sink_token_length"):
        assert [refuses(V2, **{name: value}) for value in (0, 1, -1, True, 1.0, "1")] == [False] * 2 + [True] * 4
    for name, least in (("additional_snapshot_offsets_from_start", 1), ("additional_snapshot_offsets_from_end", 0)):
        assert not refuses(V2, **STATES, **{name: [least, 7]})
        for value in ([least - 1], [7, least - 1], [True], [1.0], "1", 1):
            assert refuses(V2, **STATES, **{name: value}), value
    assert [settings(sink_token_length=tokens).sink_blocks for tokens in (0, 1, 32, 33)] == [0, 1, 1, 2]
    assert [refuses(V2, max_num_tokens=tokens) for tokens in (31, 32)] == [True, False]
    assert (settings().chunk_tokens, settings(max_num_tokens=64).chunk_tokens) == (None, 64)
    assert (settings().reuse_match_backoff, settings().periodic_snapshot_interval) == (0, 0)


def test_what_the_second_manager_keeps() -> None:
    assert not settings().window_only and settings(**STATES).window_only
    assert settings(commit_min_snapshot=True).window_only
    assert settings(policy="per_request").window_only and settings(policy="per_request").commit_at_end_only
    assert not settings().commit_at_end_only
    with pytest.raises(LawDoesNotCover, match="policy = 'per_request' with recurrent state; it states"):
        make_law(V2, {**STATES, "policy": "per_request"})
    with pytest.raises(LawDoesNotCover, match="policy = 'none'; it states"):
        make_law(V2, {"policy": "none"})
    assert refuses(V2, **STATES, commit_min_snapshot=False)
    for name in ("enable_block_reuse", "enable_partial_reuse"):
        assert getattr(settings(), name) and not getattr(settings(**{name: False}), name)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ()),
        ({"periodic_snapshot_interval": 30}, (30, 60, 90)),
        ({"periodic_snapshot_interval": 45}, (45, 90)),
        ({"periodic_snapshot_interval": 91}, ()),
        ({"additional_snapshot_offsets_from_start": [90, 1, 91]}, (1, 90)),
        ({"additional_snapshot_offsets_from_end": [0, 89, 90]}, (1, 90)),
        ({"periodic_snapshot_interval": 60, "additional_snapshot_offsets_from_end": [30]}, (60,)),
    ],
)
def test_snapshots_of_a_prompt_of_90(options: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert settings(**STATES, **options).snapshots(90) == expected


@pytest.mark.parametrize("law_id", [V1, V2, DEEPINFER])
def test_pools_have_no_limit(law_id: str) -> None:
    with pytest.raises(LawDoesNotCover, match="bounded pool"):
        make_law(law_id, {}, pool_tokens=4096)
    assert make_law(law_id, {}).pool_tokens is None


def deepinfer(**options: Any) -> DeepInfer:
    law: Law = make_law(DEEPINFER, options)
    assert isinstance(law, DeepInfer)
    return law


def test_deepinfers_blocks_and_chunks() -> None:
    assert not refuses(DEEPINFER, groups=["full:128", "swa:128:64"]) and refuses(DEEPINFER, groups=["full:64"])
    assert refuses(DEEPINFER, chunk_tokens=256) and refuses(DEEPINFER, chunked_prefill=True)
    assert refuses(DEEPINFER, chunked_prefill=False, chunk_tokens=256)
    assert deepinfer(chunked_prefill=True, chunk_tokens=1).chunk_tokens == 1
    assert refuses(DEEPINFER, chunked_prefill=True, chunk_tokens=0)
    assert (deepinfer().chunk_tokens, deepinfer().context_parallel, deepinfer(cp=2).context_parallel) == (None, 1, 2)


def test_deepinfers_ring_holds_the_window_and_what_drafts_may_take_back() -> None:
    assert deepinfer().ring is None
    for options, slots in (
        ({}, 128 + 5 + 1),
        ({"DEEPINFER_USE_NEXTN_DECODE": 1}, 128 + 2),
        ({"DEEPINFER_MAX_BACKTRACKING_TOKENS": 6}, 134),
        ({"DEEPINFER_MAX_BACKTRACKING_TOKENS": 7}, 135),
        ({"DEEPINFER_MAX_BACKTRACKING_TOKENS": 7, "DEEPINFER_USE_NEXTN_DECODE": 9}, 138),
    ):
        ring = deepinfer(**WINDOW, **options).ring
        assert ring is not None and ring.slots == slots
    assert deepinfer(groups=["swa:128", "full", "swa:128"]).ring == deepinfer(**WINDOW).ring
    assert refuses(DEEPINFER, groups=["swa:128", "swa:64"])


def test_deepinfers_consumers_keep_at_least_the_ring() -> None:
    assert deepinfer(**WINDOW).consumers.mode is Mode.OFF and deepinfer(keep_tokens=1).consumers.keep == 0
    for mode in ("compact", "mask"):
        assert deepinfer(**WINDOW, yoco_mode=mode).consumers.keep == 140
        assert [refuses(DEEPINFER, **WINDOW, yoco_mode=mode, keep_tokens=keep) for keep in (133, 134)] == [True, False]
        assert refuses(DEEPINFER, yoco_mode=mode)
    assert refuses(DEEPINFER, **WINDOW, yoco_mode="on")


def test_deepinfers_replay_fills_the_ring() -> None:
    assert (deepinfer().external_replay, deepinfer(external_replay=1).external_replay) == (0, 1)
    assert [refuses(DEEPINFER, **WINDOW, external_replay=tokens) for tokens in (133, 134)] == [True, False]
    assert refuses(DEEPINFER, external_replay=0)
