"""vLLM's own scheduler and cache code in five versions against tables measured and published elsewhere.

Numbers carry their source: "measured" ones were taken with an executor of the same kind before this worker existed
(layers 12 recurrent, 4 full and 1 of MTP); the others are public reports. One worker a version serves all of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapters.base import EngineSpec
from adapters.lookup import Lookup, open_lookup
from adapters.registry import adapter_for
from checkpoints import Checkpoint
from reference_engine.laws.registry import make_law
from vocabulary.engine import Feature, Fidelity, Media, Mode, Reply, TokenRequest
from vocabulary.errors import RequestRefused, UsageError

RELEASES = {"0.23": "0.23.0", "0.26": "0.26.0", "0.30": "0.30.0", "0.32": "0.32.0", "0.33": "0.33.0"}
_draw = random.Random(7)
P, Q, R = ([_draw.randrange(100_000) for _ in range(9000)] for _ in range(3))
_ids = count()


def hybrid(block: int) -> list[str]:
    """Three recurrent groups and one of full attention, as Qwen3-Next and Qwen3.5 give them."""
    return [f"gdn:{block}"] * 3 + [f"full:{block}"]


def ask(lookup: Lookup, ids: Sequence[int], outputs: Sequence[int] = (), **more: Any) -> Reply:
    request = TokenRequest(request_id=f"r{next(_ids)}", ids=tuple(ids), **more)
    reply = lookup.send(request, outputs)
    assert reply.prompt_len == len(ids)
    assert reply.steps is not None
    assert reply.steps[0][0] == reply.position_start == reply.hit_len
    assert reply.steps[-1][1] == len(ids)
    assert all(a[1] == b[0] for a, b in zip(reply.steps, reply.steps[1:], strict=False))
    return reply


def hits(lookup: Lookup, *prompts: Sequence[int]) -> list[int | None]:
    """Hits of prompts sent in order on an empty cache."""
    assert lookup.reset()
    return [ask(lookup, ids).hit_len for ids in prompts]


def repeated(lookup: Lookup, lengths: Sequence[int]) -> list[list[int | None]]:
    """Per length, the hits of the second and third send of one prompt."""
    return [hits(lookup, *[P[:length]] * 3)[1:] for length in lengths]


@pytest.fixture(
    scope="module",
    params=[pytest.param(v, marks=pytest.mark.live(f"vllm-lookup@{release}")) for v, release in RELEASES.items()],
)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def lookup(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lookup]:
    lookup = open_lookup(f"vllm@{version}", {"groups": ["full:16"]}, tmp_path_factory.mktemp(f"vllm-{version}"))
    yield lookup
    lookup.close()


# --- what it says about itself


def test_facts(lookup: Lookup, version: str) -> None:
    lookup.reconfigure({"groups": ["full:16", "swa:16:64"], "max_num_batched_tokens": 2048})
    facts = lookup.facts
    assert (facts.engine, facts.version, facts.fidelity) == ("vllm-lookup", RELEASES[version], Fidelity.LOOKUP)
    assert facts.groups == ("full:16", "swa:16:64")
    assert facts.granule == 16
    assert facts.options["max_num_batched_tokens"] == 2048
    assert facts.options["coordinator"] == "vllm.v1.core.kv_cache_coordinator.HybridKVCacheCoordinator"
    assert facts.options["managers"] == ["FullAttentionManager", "SlidingWindowManager"]
    assert facts.law == f"vllm@{version}"
    assert facts.law_options["groups"] == ["full:16", "swa:16:64"]
    assert facts.law_options["max_num_batched_tokens"] == 2048
    if version in ("0.23", "0.26"):
        with pytest.raises(UsageError, match="block_size must be divisible"):
            lookup.reconfigure({"groups": ["full:48", "gdn:64"]})
    else:  # hits may end inside a block of a recurrent layer
        lookup.reconfigure({"groups": ["full:48", "gdn:64"]})
        assert (facts.granule, lookup.facts.granule) == (16, 16)


# --- full attention (measured, all five versions alike but for B' and the successor keys of 0.33)


@pytest.mark.parametrize("block", [16, 128])
def test_dense_boundaries(lookup: Lookup, block: int) -> None:
    lookup.reconfigure({"groups": [f"full:{block}"]})
    lengths = [block - 1, block, block + 1, 2 * block, 2 * block + 1]
    assert [second for second, _ in repeated(lookup, lengths)] == [0, 0, block, block, 2 * block]
    shared, changed = P[:1026], [*P[:17], P[17] + 1, *P[18:1026]]
    prompts = ([*P[:1024], *Q[:14]], [*shared, *R[:12]], [*changed, *R[:12]])
    assert hits(lookup, *prompts) == [0, 1024, 16 if block == 16 else 0]


def test_exact_multiples_and_speculation(lookup: Lookup, version: str) -> None:
    lookup.reconfigure({"groups": ["full:16"]})
    assert repeated(lookup, [256]) == [[240, 240]]
    lookup.reconfigure({"groups": ["full:16"], "num_speculative_tokens": 1})
    assert repeated(lookup, [256]) == [[240, 240] if version == "0.33" else [224, 224]]
    assert lookup.facts.options["speculative_method"] == "mtp"


def test_successor_keys_of_0_33(lookup: Lookup, version: str) -> None:
    lookup.reconfigure({"groups": ["full:16"], "num_speculative_tokens": 1})
    found = [hits(lookup, P[:100], [*P[:k], *Q[:100]])[1] for k in (16, 17, 32, 33, 48, 49)]
    assert found == ([0, 16, 16, 32, 32, 48] if version == "0.33" else [0, 0, 16, 16, 32, 32])


# --- sliding window (measured: window 64, block 16)


def test_window(lookup: Lookup, version: str) -> None:
    prompts = (P[:1038], P[:519], P[:519], P[:775], [*P[:1038], *Q[:50]])
    dense, sparse = [0, 512, 512, 768, 1024], [0, 0, 512, 512, 1024]
    lookup.reconfigure({"groups": ["swa:16:64", "full:16"]})
    assert hits(lookup, *prompts) == (dense if version in ("0.23", "0.26") else sparse)
    lookup.reconfigure({"groups": ["swa:16:64", "full:16"], "prefix_cache_retention_interval": None})
    assert hits(lookup, *prompts) == dense
    lookup.reconfigure({"groups": ["swa:16:64", "full:16"], "prefix_cache_retention_interval": 0})
    assert hits(lookup, *prompts) == sparse


def test_retention_of_siblings(lookup: Lookup, version: str) -> None:
    """vllm-project/vllm#53595: siblings of one prefix of 500 tokens."""
    lookup.reconfigure({"groups": ["full:32", "swa:16:128"]})
    siblings = [[*P[:500], *tail[:300]] for tail in (Q, R, Q[500:], R[500:])]
    assert hits(lookup, *siblings) == ([0, 480, 480, 480] if version in ("0.23", "0.26") else [0, 0, 480, 480])


# --- recurrent states (measured: block 1536 and 896)

LONG = {"same": (3714, 3714), "first half": (3714, 1857), "more": (3714, 3914), "short same": (1857, 1857)}
WITH_MTP = {
    "0.23": [1536, 1536, 1536, 0],  # the second is unbacked
    "0.26": [1536, 0, 1536, 0],
    "0.30": [1536, 0, 1536, 0],
    "0.32": [1536, 0, 1536, 0],
    "0.33": [3072, 0, 3072, 1536],
}


def test_hybrid_with_and_without_mtp(lookup: Lookup, version: str) -> None:
    lookup.reconfigure({"groups": hybrid(1536), "num_speculative_tokens": 1})
    assert [hits(lookup, P[:a], P[:b])[1] for a, b in LONG.values()] == WITH_MTP[version]
    lookup.reconfigure({"groups": hybrid(1536)})
    assert [hits(lookup, P[:a], P[:b])[1] for a, b in LONG.values()] == [3072, 0, 3072, 1536]


def test_what_backs_a_hit(lookup: Lookup, version: str) -> None:
    """Stock 0.23.0 with MTP starts where its full-attention layers hold nothing (vllm-project/vllm#43559)."""
    lookup.reconfigure({"groups": hybrid(1536), "num_speculative_tokens": 1})
    lookup.reset()
    ask(lookup, P[:3714])
    whole, half = ask(lookup, P[:3714]), ask(lookup, P[:1857])
    assert whole.backed_len == whole.hit_len
    assert whole.native["held_tokens"] == [[group, whole.hit_len] for group in hybrid(1536)]
    assert half.backed_len == 0
    if version == "0.23":
        assert (half.hit_len, half.position_start) == (1536, 1536)
        assert half.native["held_tokens"] == [*[["gdn:1536", 1536]] * 3, ["full:1536", 0]]
    else:
        assert (half.hit_len, half.position_start) == (0, 0)


LENGTHS = (895, 896, 897, 1792, 1793, 2688, 2689)
SECOND_THIRD = {
    ("0.23", 0): ([0, 0, 896, 0, 1792, 0, 2688], [0, 0, 896, 0, 1792, 0, 2688]),
    ("0.26", 0): ([0, 0, 896, 0, 1792, 0, 2688], [0, 0, 896, 896, 1792, 1792, 2688]),
    ("0.30", 0): ([0, 0, 896, 0, 1792, 0, 2688], [0, 0, 896, 896, 1792, 1792, 2688]),
    ("0.32", 0): ([0, 0, 896, 896, 1792, 1792, 2688], [0, 0, 896, 896, 1792, 1792, 2688]),
    ("0.33", 0): ([0, 0, 896, 896, 1792, 1792, 2688], [0, 0, 896, 896, 1792, 1792, 2688]),
    ("0.23", 1): ([0, 0, 0, 896, 896, 1792, 1792], [0, 0, 0, 896, 896, 1792, 1792]),
    ("0.26", 1): ([0, 0, 0, 0, 896, 0, 1792], [0, 0, 0, 0, 896, 896, 1792]),
    ("0.30", 1): ([0, 0, 0, 0, 896, 0, 1792], [0, 0, 0, 0, 896, 896, 1792]),
    ("0.32", 1): ([0, 0, 0, 896, 896, 1792, 1792], [0, 0, 0, 896, 896, 1792, 1792]),
    ("0.33", 1): ([0, 0, 896, 896, 1792, 1792, 2688], [0, 0, 896, 896, 1792, 1792, 2688]),
}


@pytest.mark.parametrize("speculative", [0, 1])
def test_repeats_around_the_block(lookup: Lookup, version: str, speculative: int) -> None:
    lookup.reconfigure({"groups": hybrid(896), "num_speculative_tokens": speculative})
    found = repeated(lookup, LENGTHS)
    assert tuple([each[i] for each in found] for i in (0, 1)) == SECOND_THIRD[version, speculative]


def test_switches_of_the_drop(lookup: Lookup, version: str) -> None:
    options = {"groups": hybrid(896), "num_speculative_tokens": 1}
    if version in ("0.23", "0.26"):
        with pytest.raises(UsageError, match=rf"vLLM {RELEASES[version]} has no option disable_eagle_block_drop"):
            lookup.reconfigure(options | {"disable_eagle_block_drop": True})
    else:
        lookup.reconfigure(options | {"disable_eagle_block_drop": True})
        assert [second for second, _ in repeated(lookup, LENGTHS)] == SECOND_THIRD[version, 0][0]
    if version == "0.33":
        lookup.reconfigure(options | {"disable_lookahead_block_hashes": True})
        assert [second for second, _ in repeated(lookup, LENGTHS)] == SECOND_THIRD["0.32", 1][0]
    else:
        with pytest.raises(UsageError, match="has no option disable_lookahead_block_hashes"):
            lookup.reconfigure(options | {"disable_lookahead_block_hashes": True})


def test_match_unit(lookup: Lookup, version: str) -> None:
    options = {"groups": ["full:1072", "gdn:1072"], "prefix_match_unit": 67}
    if version == "0.23":
        with pytest.raises(UsageError, match=r"vLLM 0\.23\.0 has no option prefix_match_unit"):
            lookup.reconfigure(options)
        return
    lookup.reconfigure(options)
    assert lookup.facts.granule == 67
    assert repeated(lookup, [3000])[0][0] == 2948


def test_junction_serves_the_next_sibling(lookup: Lookup, version: str) -> None:
    """Measured on 0.26 and later: 1500 shared tokens, block 528."""
    lookup.reconfigure({"groups": ["full:528", "gdn:528"]})
    siblings = [[*P[:1500], *tail[:700]] for tail in (Q, R, Q[700:])]
    lookup.reset()
    replies = [ask(lookup, ids) for ids in siblings]
    if version == "0.23":
        assert [reply.native["shared_prefix_boundary"] for reply in replies] == [None] * 3
        return
    assert [reply.hit_len for reply in replies] == [0, 0, 1056]
    assert [reply.native["shared_prefix_boundary"] for reply in replies] == [0, 1056, 0]
    assert (replies[1].steps or ())[0] == (0, 1056)


# Published: vllm-ascend 0.23 service, MTP, block 1536; vLLM 0.26.0 gives all five rows exactly.
TURNS = {
    "short-answer": (1857, 200, 200, 2081, 0, 0),
    "long-answer": (1857, 2000, 2000, 3881, 0, 1536),
    "long-prompt-answer": (3714, 2000, 2000, 5737, 1536, 3072),
    "fork-mid-answer": (1857, 2000, 1000, 2872, 0, 0),
    "longer-answer": (1857, 4000, 4000, 5881, 3072, 3072),
}


@pytest.mark.parametrize("turn", TURNS)
def test_multi_turn_table(lookup: Lookup, version: str, turn: str) -> None:
    if version != "0.26":
        pytest.skip("the table is that of 0.26")
    prompt, answer, kept, total, first, again = TURNS[turn]
    lookup.reconfigure({"groups": hybrid(1536), "num_speculative_tokens": 1})
    reply = ask(lookup, P[:prompt], Q[:answer])
    assert reply.output_ids == tuple(Q[:answer])
    history = [*P[:prompt], *Q[:kept]]
    follow_up = [*history, *R[: total - len(history)]]
    assert [ask(lookup, follow_up).hit_len for _ in range(2)] == [first, again]


# --- namespaces and request features


def test_namespaces(lookup: Lookup) -> None:
    lookup.reconfigure({"groups": ["full:16"]})
    salts = (None, "a", "a", "b", None)
    assert [ask(lookup, P[:900], namespace=salt).hit_len for salt in salts] == [0, 0, 896, 0, 896]


def test_adapters(lookup: Lookup, version: str) -> None:
    """vllm-project/vllm#30931, #42125: up to 0.30 the key has an adapter's name only, from 0.32 its path too."""
    lookup.reconfigure({"groups": ["full:16"]})
    found = [ask(lookup, P[:900], lora=each).hit_len for each in (None, "a@/p1", "a@/p1", "a@/p2", "b@/p1", None)]
    by_name = version in ("0.23", "0.26", "0.30")
    assert found == [0, 0, 896, 896 if by_name else 0, 0, 896]


@pytest.mark.parametrize("groups", [["full:16"], ["full:16", "swa:16:64"]])
def test_images_are_told_apart_by_content_and_place(lookup: Lookup, version: str, groups: list[str]) -> None:
    lookup.reconfigure({"groups": groups})
    law, draw = make_law(f"vllm@{version}", {"groups": groups}), random.Random(3)
    found: list[tuple[int | None, int | None]] = []
    for number in range(40):
        media, place = [], draw.choice([0, 16, 30, 32, 40])
        for kind in draw.choices(range(5), k=draw.randrange(3)):
            media.append(Media(f"image {kind}", place, (1, 5, 16, 20, 40)[kind]))
            place += media[-1].length + draw.choice([0, 3, 16])
        ids = (P, Q)[draw.randrange(2)][: place + draw.randrange(1, 200)]
        request = TokenRequest(request_id=f"m{number}", ids=tuple(ids), max_tokens=2, media=tuple(media))
        reply, expected = lookup.send(request), law.send(request)
        law.finish(request, reply.output_ids)
        assert (reply.hit_len, reply.position_start) == (expected.hit_len, expected.position_start), request.media
        found.append((reply.hit_len, expected.hit_len))
    assert len(set(found)) > 4
    if groups == ["full:16"]:
        images = [[Media(name, 40, 20)] for name in ("a", "a", "b")]
        assert [ask(lookup, R[:100], media=tuple(each)).hit_len for each in ([], *images)] == [0, 32, 96, 32]


def test_what_is_under_an_image_and_how_long_it_is(lookup: Lookup, version: str) -> None:
    lookup.reconfigure({"groups": ["full:16"]})
    law, image = make_law(f"vllm@{version}", {"groups": ["full:16"]}), (Media("a", 0, 16),)
    for number, ids in enumerate((P[:100], Q[:16] + P[16:100], P[:100])):
        request = TokenRequest(request_id=f"u{number}", ids=tuple(ids), media=image)
        reply, expected = lookup.send(request), law.send(request)
        law.finish(request, reply.output_ids)
        assert reply.hit_len == expected.hit_len == (0, 0, 96)[number]
    longer = (Media("a", 0, 20),)
    with pytest.raises(RequestRefused, match="'a' has 20 positions and had 16"):
        ask(lookup, P[:100], media=longer)
    lookup.reset()
    assert [ask(lookup, P[:100], media=longer).hit_len for _ in range(2)] == [0, 96]


def test_of_requests_refused_together_nothing_is_left(lookup: Lookup) -> None:
    lookup.reconfigure({"groups": ["full:16"], "max_model_len": 512})
    pair = [TokenRequest(request_id=f"t{length}", ids=tuple(P[:length])) for length in (100, 600)]
    with pytest.raises(RequestRefused, match="exceed max_model_len"):
        lookup.send_together(pair)
    assert [ask(lookup, P[:100]).hit_len for _ in range(2)] == [0, 96]


@pytest.mark.parametrize("feature", [Feature.PROMPT_LOGPROBS, Feature.SKIP_LOOKUP])
def test_skipped_lookups_still_publish(lookup: Lookup, feature: Feature) -> None:
    """vllm-project/vllm#13409, PR 28194."""
    lookup.reconfigure({"groups": ["full:16"]})
    skipping = frozenset({feature})
    assert [ask(lookup, P[:900], features=skipping).hit_len for _ in range(2)] == [0, 0]
    assert ask(lookup, P[:900]).hit_len == 896


def test_without_prefix_caching(lookup: Lookup) -> None:
    lookup.reconfigure({"groups": ["full:16"], "enable_prefix_caching": False})
    assert [ask(lookup, P[:900]).hit_len for _ in range(2)] == [0, 0]


def test_generated_tokens_are_cached(lookup: Lookup) -> None:
    """Measured: prompt 20 and 30 generated, block 16; the last token has no KV."""
    lookup.reconfigure({"groups": ["full:16"]})
    ask(lookup, P[:20], Q[:30])
    assert ask(lookup, [*P[:20], *Q[:30], *R[:9]]).hit_len == 48
    assert len(ask(lookup, P[:20], max_tokens=5).output_ids) == 5


def test_chunks_follow_the_budget(lookup: Lookup) -> None:
    lookup.reconfigure({"groups": ["full:16"], "max_num_batched_tokens": 512})
    assert ask(lookup, P[:1038]).steps == ((0, 512), (512, 1024), (1024, 1038))


# --- pools


def test_bounded_pools(lookup: Lookup) -> None:
    """vllm-project/vllm#54458 with 39 usable blocks; a prefix is evicted from its end."""
    lookup.reconfigure({"groups": ["full:16"], "num_gpu_blocks_override": 40})
    assert hits(lookup, P[:320], Q[:320], P[:320], Q[:320]) == [0, 0, 304, 304]
    lookup.reconfigure({"groups": ["full:32"], "num_gpu_blocks_override": 17})
    # 7 blocks a prompt of 200: the third takes 13, 2 of them unused yet, then 7 of the first and 4 of the second.
    assert hits(lookup, P[:200], Q[:200], R[:400], Q[:200], P[:200]) == [0, 0, 0, 96, 0]
    with pytest.raises(RequestRefused, match="max_model_len"):
        ask(lookup, P[:700])
    assert ask(lookup, Q[:200]).native["free_blocks"] == 16


# --- configurations and refusals


def test_reconfigures_on_an_empty_cache(lookup: Lookup) -> None:
    lookup.reconfigure({"groups": ["full:16"]})
    assert [ask(lookup, P[:900]).hit_len for _ in range(2)] == [0, 896]
    lookup.reconfigure({"groups": ["full:16"]})
    assert ask(lookup, P[:900]).hit_len == 0


def test_block_size_fills_in_groups(lookup: Lookup) -> None:
    lookup.reconfigure({"groups": ["full", "swa:64"], "block_size": 32})
    assert lookup.facts.groups == ("full:32", "swa:32:64")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": ["full:16", "full:16"]}, "groups these layers as full:16, not as full:16, full:16"),
        ({"groups": ["gdn:16"], "num_speculative_tokens": 1}, "full-attention group"),
        ({"groups": ["full:0"]}, "write full, full:BLOCK"),
        ({"block_sise": 16}, "did you mean 'block_size'"),
        ({"method": "telepathy", "num_speculative_tokens": 1}, "telepathy|method"),
    ],
)
def test_refusals(lookup: Lookup, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lookup.reconfigure(options)


def test_a_refused_configuration_does_not_answer_with_the_old_one(lookup: Lookup) -> None:
    lookup.reconfigure({"groups": ["full:16"]})
    with pytest.raises(UsageError):
        lookup.reconfigure({"groups": ["full:16", "full:16"]})
    with pytest.raises(RequestRefused, match="no configuration is in force"):
        ask(lookup, P[:100])
    lookup.reconfigure({"groups": ["full:16"]})
    assert ask(lookup, P[:100]).hit_len == 0


def test_unknown_versions_and_systems(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"vllm@0\.31: no lookup worker for this version"):
        open_lookup("vllm@0.31", {}, tmp_path)
    with pytest.raises(UsageError, match="did you mean 'vllm'"):
        open_lookup("vlm@0.30", {}, tmp_path)


@pytest.mark.live("vllm-lookup")
def test_as_an_engine_of_experiments(
    tmp_path: Path, engine_spec: Callable[..., EngineSpec], checkpoint: Callable[[str], Checkpoint]
) -> None:
    spec = engine_spec("vllm-lookup", groups=["full:16", "swa:16:64"])
    engine = adapter_for("vllm-lookup").start(spec, checkpoint("tiny-qwen3"), tmp_path)
    try:
        assert engine.facts.mode is Mode.WORKER
        assert engine.facts.law == "vllm@0.32"
        together = [TokenRequest(request_id=name, ids=tuple(P[:1000]), max_tokens=3) for name in "ab"]
        replies = engine.send_together(together)
        assert [reply.request_id for reply in replies] == ["a", "b"]
        assert [len(reply.output_ids) for reply in replies] == [3, 3]
        assert engine.reset()
        assert engine.send(together[0]).hit_len == 0
        assert engine.send(together[1]).hit_len == 992
    finally:
        engine.close()
