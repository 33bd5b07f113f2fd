"""Hits of vLLM's and vLLM-Ascend's laws: published tables, public reports, and values read from the engines' own code.

"Engine core" below: the scheduler and cache manager of that release, run without a model (adapters.vllm_lookup).
"""

from __future__ import annotations

from typing import Any

import pytest
from vllm_asking import VERSIONS, P, ask, hits, other, repeated, steps
from vllm_lengths import OUTPUT, Lengths, read, request

from reference_engine.laws.registry import make_law
from reference_engine.laws.vllm.switches import VLLM

MTP = {"num_speculative_tokens": 1, "method": "mtp"}


def gdn(block: int, states: int = 3) -> dict[str, Any]:
    return {"groups": [f"full:{block}", *[f"gdn:{block}"] * states]}


# Second send, without a drafter and with MTP; engine core of each release.
EXACT_REPEATS = [
    ({"groups": ["full:16"]}, 256, ["240/224", "240/224", "240/224", "240/224", "240/240"]),
    (gdn(1536), 1857, ["1536/0", "1536/0", "1536/0", "1536/0", "1536/1536"]),
    (gdn(1536), 3072, ["0/1536", "0/0", "0/0", "1536/1536", "1536/1536"]),  # 0.23 with MTP: unbacked
    (gdn(1536), 3073, ["3072/1536"] * 4 + ["3072/3072"]),
    (gdn(1536), 4609, ["4608/3072"] * 4 + ["4608/4608"]),
    (gdn(1072, 1), 3000, ["2144/1072", "2948/1072", "2948/2881", "2948/2881", "2948/2948"]),
]


@pytest.mark.parametrize(("options", "length", "table"), EXACT_REPEATS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("version", VERSIONS)
def test_exact_repeat(version: str, options: dict[str, Any], length: int, table: list[str]) -> None:
    unit = {"prefix_match_unit": 67} if length == 3000 and version != "0.23" else {}
    plain = repeated(f"vllm@{version}", options | unit, length)[0]
    drafted = repeated(f"vllm@{version}", options | unit | MTP, length)[0]
    assert f"{plain}/{drafted}" == table[VERSIONS.index(version)]


def test_exact_multiple_of_the_block_needs_a_junction() -> None:
    # 0.23 never hits, 0.26 and 0.30 from the third send on, 0.32 at once; engine core.
    for version, expected in zip(VERSIONS, ([0, 0], [0, 1536], [0, 1536], [1536, 1536], [1536, 1536]), strict=True):
        assert repeated(f"vllm@{version}", gdn(1536), 3072, times=3) == expected


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("off", [-1, 0, 1, 2])
def test_full_attention_at_block_edges(version: str, k: int, off: int) -> None:
    length, law = 16 * k + off, f"vllm@{version}"
    floor = (length - 1) // 16 * 16
    assert repeated(law, {"groups": ["full:16"]}, length) == [floor]
    drafted = floor if version == "0.33" else max(0, floor - 16)
    assert repeated(law, {"groups": ["full:16"]} | MTP, length) == [drafted]


@pytest.mark.parametrize("version", ["0.32", "0.33"])
@pytest.mark.parametrize("off", [-1, 0, 1, 2])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_states_at_block_edges(version: str, k: int, off: int) -> None:
    length = 528 * k + off
    assert repeated(f"vllm@{version}", gdn(528), length) == [(length - 1) // 528 * 528]


# Second send of 3714 or 1857 tokens, prompts as in the published table for Qwen3.5-27B on vLLM-Ascend 0.23, MTP on.
TABLE_ONE = {
    "vllm-ascend@0.23": (1536, 0, 1536, 0, 0),
    "vllm-ascend@0.26": (1536, 0, 1536, 0, 0),
    "vllm-ascend@0.30": (3072, 0, 3072, 1536, 1536),
    "vllm@0.23": (1536, 1536, 1536, 0, 0),
    "vllm@0.26": (1536, 0, 1536, 0, 0),
    "vllm@0.30": (1536, 0, 1536, 0, 0),
    "vllm@0.32": (1536, 0, 1536, 0, 0),
    "vllm@0.33": (3072, 0, 3072, 1536, 1536),
}


@pytest.mark.parametrize("law", TABLE_ONE)
def test_published_table_of_block_1536(law: str) -> None:
    pairs = [
        (P[:3714], P[:3714]),
        (P[:3714], P[:1857]),
        (P[:3714], [*P[:3714], *other(200)]),
        (P[:1857], P[:1857]),
        (P[:1857], [*P[:1857], *other(200)]),
    ]
    assert tuple(hits(law, gdn(1536) | MTP, *pair)[1] for pair in pairs) == TABLE_ONE[law]
    assert [hits(law, gdn(1536), *pair)[1] for pair in pairs] == [3072, 0, 3072, 1536, 1536]


def test_stock_0_23_reports_a_hit_that_full_attention_does_not_hold() -> None:
    law = make_law("vllm@0.23", gdn(1536) | MTP)
    assert ask(law, P[:3714]).backed_len is None
    unsafe = ask(law, P[:1857])
    assert (unsafe.hit_len, unsafe.position_start, unsafe.backed_len, unsafe.ledger.reused) == (1536, 1536, 0, 1536)


LENGTHS = (895, 896, 897, 1792, 1793, 2688, 2689)
# Second and third sends, block 896. The published row is vLLM-Ascend 0.30.0rc2's; the others are engine cores.
TABLE_TWO = {
    ("vllm-ascend@0.30", True): ((0, 0, 896, 0, 1792, 0, 2688), (0, 0, 896, 896, 1792, 1792, 2688)),
    ("vllm-ascend@0.30", False): ((0, 0, 896, 0, 1792, 0, 2688), (0, 0, 896, 896, 1792, 1792, 2688)),
    ("vllm@0.23", False): ((0, 0, 896, 0, 1792, 0, 2688), (0, 0, 896, 0, 1792, 0, 2688)),
    ("vllm@0.26", False): ((0, 0, 896, 0, 1792, 0, 2688), (0, 0, 896, 896, 1792, 1792, 2688)),
    ("vllm@0.30", True): ((0, 0, 0, 0, 896, 0, 1792), (0, 0, 0, 0, 896, 896, 1792)),
    ("vllm@0.32", True): ((0, 0, 0, 896, 896, 1792, 1792), (0, 0, 0, 896, 896, 1792, 1792)),
    ("vllm@0.32", False): ((0, 0, 896, 896, 1792, 1792, 2688), (0, 0, 896, 896, 1792, 1792, 2688)),
    ("vllm@0.33", True): ((0, 0, 896, 896, 1792, 1792, 2688), (0, 0, 896, 896, 1792, 1792, 2688)),
}


@pytest.mark.parametrize(("law", "drafting"), TABLE_TWO)
def test_published_table_of_block_896(law: str, drafting: bool) -> None:
    options = gdn(896) | (MTP if drafting else {})
    seen = [repeated(law, options, length, times=3) for length in LENGTHS]
    assert tuple(zip(*seen, strict=True)) == TABLE_TWO[law, drafting]


def test_drop_can_be_turned_off_from_0_30_and_lookahead_keys_in_0_33() -> None:
    off = gdn(896) | MTP | {"disable_eagle_block_drop": True}
    assert [repeated("vllm@0.30", off, length)[0] for length in LENGTHS] == [0, 0, 896, 0, 1792, 0, 2688]
    legacy = gdn(896) | MTP | {"disable_lookahead_block_hashes": True}
    assert [repeated("vllm@0.33", legacy, length)[0] for length in LENGTHS] == [0, 0, 0, 896, 896, 1792, 1792]


# Turn 1 and its answer, then turn 2 and turn 2 verbatim; published for vLLM-Ascend 0.23, rows of vLLM 0.26's core.
MULTI_TURN = [(1857, 200, 200, 2081, 0, 0), (1857, 2000, 2000, 3881, 0, 1536), (3714, 2000, 2000, 5737, 1536, 3072),
              (1857, 2000, 1000, 2872, 0, 0), (1857, 4000, 4000, 5881, 3072, 3072)]  # fmt: skip


@pytest.mark.parametrize(("prompt", "answer", "kept", "turn", "first", "again"), MULTI_TURN)
def test_published_multi_turn(prompt: int, answer: int, kept: int, turn: int, first: int, again: int) -> None:
    law = make_law("vllm@0.26", gdn(1536, 1) | MTP)
    generated = other(answer)
    ask(law, P[:prompt], generated)
    second = [*P[:prompt], *generated[:kept], *other(turn - prompt - kept)]
    assert [ask(law, second).hit_len, ask(law, second).hit_len] == [first, again]


@pytest.mark.parametrize("version", VERSIONS)
def test_sliding_window_of_64_in_blocks_of_16(version: str) -> None:
    prompts = (P[:1038], P[:519], P[:519], P[:775], [*P[:1038], *other(50)])
    dense = version in ("0.23", "0.26")
    expected = [0, 512, 512, 768, 1024] if dense else [0, 0, 512, 512, 1024]
    assert hits(f"vllm@{version}", {"groups": ["full:16", "swa:16:64"]}, *prompts) == expected


def test_ascend_0_30_spares_hybrids_only() -> None:
    # Engine core: full attention alone drops as mainline does; hybrids keep every window and every state.
    law = "vllm-ascend@0.30"
    assert repeated(law, {"groups": ["full:16"]} | MTP, 256) == [224]
    prompts = (P[:1038], P[:519], P[:519], P[:775], [*P[:1038], *other(50)])
    assert hits(law, {"groups": ["full:16", "swa:16:64"]}, *prompts) == [0, 512, 512, 768, 1024]


@pytest.mark.parametrize(("shared", "hit"), [(16, 0), (17, 16), (32, 16), (33, 32), (48, 32), (49, 48)])
def test_successor_token_is_part_of_the_key_in_0_33(shared: int, hit: int) -> None:
    pair = ([*P[:shared], *other(40)], [*P[:shared], *other(40)])
    assert hits("vllm@0.33", {"groups": ["full:16"]} | MTP, *pair)[1] == hit
    assert hits("vllm@0.32", {"groups": ["full:16"]} | MTP, *pair)[1] == max(0, shared // 16 * 16 - 16)


def test_last_generated_token_completes_a_key_in_0_33() -> None:
    # Engine core of 0.33: a block whose successor is the last token is published when that token arrives.
    law = make_law("vllm@0.33", {"groups": ["full:8"]} | MTP)
    ask(law, P[:56], [777])
    assert ask(law, [*P[:56], 777, *other(40)]).hit_len == 56


# -- public reports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "third"), [(1900, 0), (2095, 0), (2096, 2096), (4192, 4192)])
def test_shared_prefix_shorter_than_a_block(shared: int, third: int) -> None:
    # vllm #53749; tails long enough that no sibling ends on the shared boundary by itself
    siblings = [[*P[:shared], *other(3000)] for _ in range(3)]
    assert hits("vllm@0.30", gdn(2096), *siblings) == [0, 0, third]


@pytest.mark.parametrize(("length", "hit"), [(480, 0), (529, 528), (552, 528), (979, 528)])
def test_prompt_shorter_than_a_block(length: int, hit: int) -> None:
    assert repeated("vllm@0.30", gdn(528), length) == [hit]  # vllm #40696


def test_block_larger_than_the_context() -> None:
    assert repeated("vllm@0.23", gdn(8320) | {"max_model_len": 4096}, 4000, times=3) == [0, 0]  # vllm #48401


LADDERS = [(2144, (3784, 7542, 11292, 15019, 18770), (0, 4288, 8576, 12864, 15008)),
           (448, (512, 1024, 2048, 4096, 8192), (0, 448, 1344, 3584, 7616))]  # fmt: skip


@pytest.mark.parametrize(("block", "lengths", "published"), LADDERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_one_unit_less(version: str, block: int, lengths: tuple[int, ...], published: tuple[int, ...]) -> None:
    # vllm #54360 and syv-ai/qwen38-27b-rtx3090 #102
    seen = tuple(repeated(f"vllm@{version}", gdn(block) | MTP, length)[0] for length in lengths)
    assert seen == (tuple((length - 1) // block * block for length in lengths) if version == "0.33" else published)


FINE = (1072, 2000, 2144, 3000, 3500)


@pytest.mark.parametrize(
    ("version", "drafted", "plain"),
    [
        ("0.26", (0, 0, 0, 1072, 2144), (0, 1943, 0, 2948, 3484)),
        ("0.30", (0, 1876, 0, 2881, 3417), (0, 1943, 0, 2948, 3484)),
        ("0.32", (1005, 1876, 2077, 2881, 3417), (1005, 1943, 2077, 2948, 3484)),
        ("0.33", (1005, 1943, 2077, 2948, 3484), (1005, 1943, 2077, 2948, 3484)),
    ],
)
def test_fine_grained_match_unit(version: str, drafted: tuple[int, ...], plain: tuple[int, ...]) -> None:
    # vllm PR 52244 (its table is 0.26's row); the others are engine cores
    options = gdn(1072, 1) | {"prefix_match_unit": 67}
    assert tuple(repeated(f"vllm@{version}", options | MTP, length)[0] for length in FINE) == drafted
    assert tuple(repeated(f"vllm@{version}", options, length)[0] for length in FINE) == plain


def test_window_with_drafter() -> None:
    for version in VERSIONS[1:]:
        hit = repeated(f"vllm@{version}", {"groups": ["full:16", "swa:16:128"]} | MTP, 1000)
        assert hit == [992 if version == "0.33" else 976]  # vllm #32802
        mixed = repeated(f"vllm@{version}", {"groups": ["full:32", "swa:16:64"]} | MTP, 1000)
        assert mixed[0] % 32 == 0 and mixed[0] > 0  # vllm #40624


def test_same_adapter_name_other_path() -> None:
    for version, expected in (("0.30", 96), ("0.32", 0)):  # vllm #30931
        law = make_law(f"vllm@{version}", {"groups": ["full:16"]})
        assert [ask(law, P[:100], lora=lora).hit_len for lora in ("a@/p1", "a@/p2", "b", None)] == [0, expected, 0, 0]
        assert ask(law, P[:100], lora="a@/p1").hit_len == 96


def test_retention_keeps_replay_boundaries_only() -> None:
    siblings = [[*P[:500], *other(300)] for _ in range(4)]  # vllm #53595
    groups = {"groups": ["full:32", "swa:16:128"]}
    assert hits("vllm@0.26", groups, *siblings) == [0, 480, 480, 480]
    assert hits("vllm@0.30", groups, *siblings) == [0, 0, 480, 480]
    prompts = (P[:320], P[:200], P[:100], [*P[:320], *other(8)])
    groups = {"groups": ["full:16", "swa:16:64"]}
    assert hits("vllm@0.26", groups, *prompts) == [0, 192, 96, 320]
    assert hits("vllm@0.30", groups, *prompts) == [0, 0, 0, 304]
    assert hits("vllm@0.30", groups | {"prefix_cache_retention_interval": None}, *prompts) == [0, 192, 96, 320]


def test_small_pool_loses_the_tail() -> None:
    first, second = P[:320], other(320)
    for version in VERSIONS:  # vllm #54458: 39 usable blocks hold all but one of two prompts
        bounded = {"groups": ["full:16"], "num_gpu_blocks_override": 40}
        assert hits(f"vllm@{version}", bounded, first, second, first, second) == [0, 0, 304, 304]


# -- generated tokens, chunks -----------------------------------------------------------------------------------------


def test_generated_tokens_are_cached_but_the_last() -> None:
    for version in VERSIONS:
        law = make_law(f"vllm@{version}", {"groups": ["full:16"]})
        generated = other(30)
        ask(law, P[:20], generated)
        assert ask(law, [*P[:20], *generated, *other(20)]).hit_len == 48


def test_chunks_end_where_states_are_kept() -> None:
    law = make_law("vllm@0.32", gdn(256) | {"max_num_batched_tokens": 8192})
    assert steps(law, P[:1057]) == [(0, 1024), (1024, 1057)]
    law = make_law("vllm@0.32", gdn(64) | {"max_num_batched_tokens": 40})
    assert steps(law, P[:130]) == [(0, 40), (40, 64), (64, 104), (104, 128), (128, 130)]
    law = make_law("vllm@0.32", gdn(528))
    siblings = [[*P[:1500], *other(900)] for _ in range(3)]
    seen = [ask(law, sibling) for sibling in siblings]
    assert [(each.hit_len, each.junction) for each in seen] == [(0, 0), (0, 1056), (1056, 1056)]


@pytest.mark.parametrize("version", VERSIONS)
def test_states_in_smaller_blocks_hit_on_the_common_multiple(version: str) -> None:
    groups = {"groups": ["full:48", "gdn:16"]}
    assert [repeated(f"vllm@{version}", groups, length)[0] for length in (60, 97, 145, 200)] == [48, 96, 144, 192]
    law = make_law(f"vllm@{version}", groups)
    ask(law, P[:113])
    between = ask(law, P[:113])  # its state is kept at 112
    assert (between.hit_len, between.per_group) == (0, {"full:48": 96, "gdn:16": 0})


@pytest.mark.parametrize("version", ["0.30", "0.32", "0.33"])
def test_windows_in_blocks_wider_than_a_key_keep_hits_on_the_common_multiple(version: str) -> None:
    options = {"prefix_match_unit": 16, "groups": ["full:64", "gdn:64"]}
    assert make_law(f"vllm@{version}", options).granule == 16
    options["groups"] = ["full:64", "swa:32:64", "gdn:64"]
    assert make_law(f"vllm@{version}", options).granule == 64


def test_only_0_33_has_keys_that_cover_the_next_token() -> None:
    named = [switches.law_id for switches in VLLM if "disable_lookahead_block_hashes" in switches.options]
    assert named == ["vllm@0.33"]


@pytest.mark.parametrize("known", read(), ids=lambda known: str(known.options))
def test_hits_of_one_text_cut_at_many_lengths(known: Lengths) -> None:
    for law_id, expected in known.hits.items():
        law = make_law(law_id, known.options)
        assert [law.serve(request(*sent), OUTPUT).hit_len for sent in enumerate(known.lengths)] == list(expected), (
            law_id
        )
        law.check_integrity()
