"""Why vLLM's laws say a hit is not longer, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_asking import P, ask, hits, other, steps

from reference_engine.laws.base import Expectation, PoolExhausted
from reference_engine.laws.registry import LAWS, make_law
from vocabulary.engine import Feature
from vocabulary.errors import LawDoesNotCover, UsageError
from vocabulary.ledger import Cause

MTP = {"num_speculative_tokens": 1, "method": "mtp"}
GDN = {"groups": ["full:1536", "gdn:1536"]}


def last(law_id: str, options: dict[str, Any], *prompts: Any, **fields: Any) -> Expectation:
    law = make_law(law_id, options)
    for prompt in prompts[:-1]:
        ask(law, prompt)
    return ask(law, prompts[-1], **fields)


def causes(expectation: Expectation) -> list[tuple[Cause, int]]:
    return [(interval.cause, interval.end) for interval in expectation.ledger.intervals]


def test_exact_multiple_lacks_the_state_below_the_cap() -> None:
    assert causes(last("vllm@0.30", GDN, P[:3072], P[:3072])) == [
        (Cause.NO_STATE, 1536), (Cause.GRANULE, 3071), (Cause.LAST_TOKEN, 3072)]  # fmt: skip
    assert causes(last("vllm@0.32", GDN, P[:3072], P[:3072]))[0] == (Cause.REUSED, 1536)


def test_first_sibling_finds_no_state_and_makes_the_junction() -> None:
    shared = [[*P[:1500], *other(900)] for _ in range(2)]
    found = last("vllm@0.30", {"groups": ["full:528", "gdn:528"]}, *shared)
    assert causes(found) == [(Cause.NO_STATE, 1056), (Cause.GRANULE, 1500), (Cause.NOVEL, 2400)]
    assert (found.junction, found.per_group) == (1056, {"full:528": 1056, "gdn:528": 0})
    assert found.binding is Cause.NO_STATE


def test_drafter_drops_one_unit() -> None:
    found = last("vllm@0.30", GDN | MTP, P[:1857], P[:1857])
    assert causes(found) == [(Cause.SPEC_DROP, 1536), (Cause.GRANULE, 1856), (Cause.LAST_TOKEN, 1857)]
    found = last("vllm@0.32", {"groups": ["full:16"]} | MTP, P[:100], P[:100])
    assert causes(found)[:2] == [(Cause.REUSED, 80), (Cause.SPEC_DROP, 96)]


def test_successor_differs() -> None:
    pair = ([*P[:32], *other(40)], [*P[:32], *other(40)])
    found = last("vllm@0.33", {"groups": ["full:16"]} | MTP, *pair)
    assert causes(found) == [(Cause.REUSED, 16), (Cause.SUCCESSOR, 32), (Cause.NOVEL, 72)]
    small = {"groups": ["full:16"], "num_gpu_blocks_override": 12} | MTP
    found = last("vllm@0.33", small, P[:130], other(100), [*P[:96], *other(40)])
    assert causes(found) == [(Cause.REUSED, 64), (Cause.EVICTED, 80), (Cause.SUCCESSOR, 96), (Cause.NOVEL, 136)]


def test_window_is_not_kept() -> None:
    found = last("vllm@0.30", {"groups": ["full:16", "swa:16:64"]}, P[:1038], P[:519])
    assert causes(found) == [(Cause.WINDOW, 512), (Cause.GRANULE, 518), (Cause.LAST_TOKEN, 519)]
    assert found.per_group == {"full:16": 512, "swa:16:64": 0}
    # The engine core of 0.30 keeps the window at the junction for the next one.
    assert found.junction == 512


def test_groups_agree_on_the_common_multiple() -> None:
    found = last("vllm@0.26", {"groups": ["full:32", "swa:16:64"]}, P[:1020], P[:1020])
    assert causes(found) == [
        (Cause.REUSED, 992),
        (Cause.ALIGNMENT, 1008),
        (Cause.GRANULE, 1019),
        (Cause.LAST_TOKEN, 1020),
    ]


def test_namespaces_adapters_and_skipped_lookups() -> None:
    full = {"groups": ["full:16"]}
    assert causes(last("vllm@0.32", full, P[:100], P[:100], namespace="x")) == [(Cause.NAMESPACE, 100)]
    assert causes(last("vllm@0.32", full, P[:100], P[:100], lora="a@/p"))[0] == (Cause.NAMESPACE, 100)
    for feature in (Feature.PROMPT_LOGPROBS, Feature.SKIP_LOOKUP):
        law = make_law("vllm@0.30", full)
        ask(law, P[:100])
        skipped = ask(law, P[:100], features=frozenset({feature}))
        assert causes(skipped) == [(Cause.DISABLED, 99), (Cause.LAST_TOKEN, 100)]
        assert ask(law, P[:100]).hit_len == 96
    off = last("vllm@0.32", full | {"enable_prefix_caching": False}, P[:100], P[:100])
    assert causes(off) == [(Cause.DISABLED, 99), (Cause.LAST_TOKEN, 100)]


def test_skipped_lookup_still_publishes() -> None:
    law = make_law("vllm@0.32", {"groups": ["full:16"]})
    ask(law, P[:100], features=frozenset({Feature.SKIP_LOOKUP}))
    assert ask(law, P[:100]).hit_len == 96


def test_eviction_is_named_and_takes_the_tail_first() -> None:
    found = last("vllm@0.32", {"groups": ["full:16"], "num_gpu_blocks_override": 40}, P[:320], other(320), P[:400])
    assert causes(found) == [(Cause.REUSED, 304), (Cause.EVICTED, 320), (Cause.NOVEL, 400)]
    hybrid = {"groups": ["full:64", "gdn:64"], "num_gpu_blocks_override": 14}
    found = last("vllm@0.32", hybrid, P[:330], other(330), P[:330])
    assert found.binding is Cause.EVICTED
    assert found.ledger.tokens(Cause.EVICTED) + found.hit_len == 320


def test_each_group_alone() -> None:
    law = make_law("vllm@0.26", {"groups": ["full:16", "swa:16:64", "gdn:16", "gdn:16"]})
    ask(law, P[:400])
    assert ask(law, P[:200]).per_group == {"full:16": 192, "swa:16:64": 192, "gdn:16": 0}


@pytest.mark.parametrize("law", [law for law in LAWS if law.startswith("vllm")])
def test_ledger_covers_every_prompt(law: str) -> None:
    made = make_law(law, {"groups": ["full:16", "swa:16:40", "gdn:16"], "max_num_batched_tokens": 64} | MTP)
    for length in (1, 15, 16, 17, 63, 64, 65, 200, 129, 128, 127, 200):
        found = ask(made, P[:length], output=tuple(range(length % 5 + 1)))
        assert found.ledger.prompt_len == length and found.ledger.reused == found.hit_len
        assert found.ledger.tokens(Cause.UNEXPLAINED) == 0
        assert found.hit_len <= length - 1


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "options", "error", "reason"),
    [
        ("vllm@0.23", {"prefix_match_unit": 4}, UsageError, "no option 'prefix_match_unit'"),
        ("vllm@0.26", {"disable_eagle_block_drop": True}, UsageError, "disable_eagle_block_drop"),
        ("vllm@0.32", {"disable_lookahead_block_hashes": True}, UsageError, "disable_lookahead"),
        ("vllm@0.32", {"groups": ["full:16"], "prefix_match_unit": 4}, LawDoesNotCover, "one layer group"),
        ("vllm@0.26", {"groups": ["full:16", "gdn:528"]}, LawDoesNotCover, "keys of 528"),
        ("vllm@0.26", {"groups": ["full:16", "full:16"]}, LawDoesNotCover, "all full:16"),
        ("vllm@0.26", {"groups": ["full:32", "swa:32:64", "gdn:32"], "prefix_match_unit": 8}, LawDoesNotCover, "fails"),
        ("vllm@0.30", {"groups": ["full:32", "gdn:32"], "prefix_match_unit": 5}, LawDoesNotCover, "keys of 5"),
        (
            "vllm@0.30",
            {"groups": ["full:16", "gdn:16"], "mamba_cache_mode": "all"},
            LawDoesNotCover,
            "mamba_cache_mode",
        ),
        ("vllm@0.30", {"method": "suffix", "num_speculative_tokens": 2}, LawDoesNotCover, "suffix"),
        ("vllm@0.30", {"num_speculative_tokens": -1}, LawDoesNotCover, "num_speculative_tokens"),
        ("vllm@0.23", {"prefix_cache_retention_interval": 0}, LawDoesNotCover, "retention"),
        (
            "vllm@0.30",
            {"groups": ["full:16", "swa:16:64"], "prefix_cache_retention_interval": 24},
            LawDoesNotCover,
            "24",
        ),
        ("vllm@0.23", {"groups": ["full:32", "full:16", "swa:16:64"]}, LawDoesNotCover, "different sizes"),
        ("vllm@0.30", {"groups": "full"}, LawDoesNotCover, "a list"),
    ],
)
def test_what_is_refused(law: str, options: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        make_law(law, options)


def test_requests_that_the_engine_would_not_finish() -> None:
    with pytest.raises(LawDoesNotCover, match="never schedules"):
        hits("vllm@0.26", {"groups": ["full:64", "gdn:64"], "max_num_batched_tokens": 40}, P[:200])
    with pytest.raises(LawDoesNotCover, match="max_model_len"):
        hits("vllm@0.30", {"groups": ["full:16"], "max_model_len": 64}, P[:64])
    law = make_law("vllm@0.32", {"groups": ["full:64", "gdn:64"], "num_gpu_blocks_override": 5})
    with pytest.raises(PoolExhausted):
        ask(law, P[:400])
    law.check_integrity()
    assert ask(law, P[:100]).hit_len == 0


def test_steps_of_a_prompt_with_one_token_left() -> None:
    law = make_law("vllm@0.30", {"groups": ["full:16"]} | MTP | {"disable_eagle_block_drop": True})
    ask(law, P[:97])
    assert steps(law, P[:97]) == [(96, 97)]


@pytest.mark.parametrize("version", ["0.23", "0.26", "0.30", "0.32"])
@pytest.mark.parametrize("groups", [["full:16"], ["full:16", "swa:16:40"]])
def test_a_drafter_is_booked_one_unit_and_eviction_the_rest(version: str, groups: list[str]) -> None:
    eagle = {"method": "eagle", "num_speculative_tokens": 1}
    law = make_law(f"vllm@{version}", {"groups": groups, "num_gpu_blocks_override": 26, **eagle})
    for prompt in (P[:97], other(380 if len(groups) == 1 else 165)):
        ask(law, prompt)
    gone = ask(law, P[:97]).ledger.by_cause()
    assert gone == {Cause.EVICTED: 80, Cause.SPEC_DROP: 16, Cause.LAST_TOKEN: 1}


@pytest.mark.parametrize(
    ("version", "groups", "alone"),
    [
        ("0.23", ["full:16", "swa:16:40"], [(64, 64), (64, 64), (80, 80)]),
        ("0.23", ["full:16", "gdn:16"], [(64, 80), (64, 80), (80, 96)]),
        ("0.30", ["full:16", "swa:16:40"], [(64, 64), (64, 64), (80, 80)]),
        ("0.30", ["full:16", "gdn:16"], [(64, 80), (64, 80), (80, 96)]),
        ("0.32", ["full:16", "swa:16:40"], [(64, 80), (80, 80), (80, 96)]),
        ("0.32", ["full:16", "gdn:16"], [(64, 80), (80, 80), (80, 96)]),
        ("0.33", ["full:16", "swa:16:40"], [(80, 80), (80, 80), (80, 80)]),
        ("0.33", ["full:16", "gdn:16"], [(80, 80), (80, 80), (80, 80)]),
    ],
)
def test_each_group_alone_with_a_drafter(version: str, groups: list[str], alone: list[tuple[int, ...]]) -> None:
    """Of 96 tokens by prompts of 95 to 97. From 0.32 on full attention gives back alone, and may look past L-1."""
    for length, expected in zip((95, 96, 97), alone, strict=True):
        law = make_law(f"vllm@{version}", {"groups": groups, "prefix_cache_retention_interval": None} | MTP)
        ask(law, P[:96])
        assert tuple(ask(law, P[:length]).per_group.values()) == expected
