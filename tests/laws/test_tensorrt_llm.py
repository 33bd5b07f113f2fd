"""TensorRT-LLM's laws. No engine was run: the tables are those of an independent model of the same sources.

Numbers of a table marked "own model" were computed by another program from the same reading of the source; agreement
shows that the law says what was read, not that the engine does it. Reports name repository and number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.laws.base import Expectation, Law, Lease
from reference_engine.laws.registry import LAWS, make_law
from reference_engine.laws.tensorrt_llm.budget import FirstChunk, admitted, estimate
from reference_engine.laws.tensorrt_llm.v1 import TrtllmV1
from reference_engine.laws.tensorrt_llm.v2 import HeldV2
from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.ledger import Cause

V1, V2 = "tensorrt-llm@v1", "tensorrt-llm@v2"
CYCLIC = "tensorrt-llm@v1-cyclic"


def request(ids: Sequence[int], name: str = "r", **fields: Any) -> TokenRequest:
    return TokenRequest(request_id=name, ids=tuple(ids), **fields)


def ask(law: Law, ids: Sequence[int], *, output: Sequence[int] = (7,), **fields: Any) -> Expectation:
    asked = request(ids, max_tokens=len(output), **fields)
    expectation = law.send(asked)
    law.finish(asked, output)
    law.check_integrity()
    return expectation


def after(law_id: str, options: dict[str, Any], first: Sequence[int], second: Sequence[int]) -> Expectation:
    """What `second` gets on a cache that served `first`."""
    law = make_law(law_id, options)
    assert ask(law, first).hit_len == 0
    return ask(law, second)


def siblings(shared: int, count: int, tail: int = 100) -> list[list[int]]:
    return [[*range(shared), *range(1000 * (n + 1), 1000 * (n + 1) + tail)] for n in range(count)]


# --- tables of the own model, tokens_per_block 32 ---------------------------------------------------------------------


@pytest.mark.parametrize("law_id", [V1, V2])
@pytest.mark.parametrize(
    ("partial", "hits"), [(True, [0, 30, 31, 32, 62, 63, 64, 95, 96]), (False, [0, 0, 0, 32, 32, 32, 64, 64, 96])]
)
def test_repeat(law_id: str, partial: bool, hits: list[int]) -> None:
    lengths = [1, 31, 32, 33, 63, 64, 65, 96, 97]
    options = {"enable_partial_reuse": partial}
    # The last generated token has no KV in V1, and V2 stores none: one output leaves only the prompt in both.
    assert [after(law_id, options, range(n), range(n)).hit_len for n in lengths] == hits


def test_v2_backoff() -> None:
    for length, hit in [(32, 30), (33, 31), (34, 32), (65, 63)]:
        got = after(V2, {"reuse_match_backoff": 1}, range(length), range(length))
        assert got.hit_len == hit
        assert got.ledger.tokens(Cause.SPEC_DROP) == 1


@pytest.mark.parametrize("law_id", [V1, V2])
@pytest.mark.parametrize(
    ("partial", "hits"), [(True, [10, 31, 32, 33, 40, 64, 100]), (False, [0, 0, 32, 32, 32, 64, 96])]
)
def test_siblings(law_id: str, partial: bool, hits: list[int]) -> None:
    shares = [10, 31, 32, 33, 40, 64, 100]
    got = [after(law_id, {"enable_partial_reuse": partial}, *siblings(s, 2)).hit_len for s in shares]
    assert got == hits


@pytest.mark.parametrize("law_id", [V1, V2])
@pytest.mark.parametrize(("partial", "hits"), [(True, [19, 32, 499, 512]), (False, [0, 32, 480, 512])])
def test_first_n_of_a_longer_prompt(law_id: str, partial: bool, hits: list[int]) -> None:
    options = {"enable_partial_reuse": partial}
    assert [after(law_id, options, range(1000), range(n)).hit_len for n in (20, 33, 500, 513)] == hits


@pytest.mark.parametrize(("count", "hit"), [(40, 32), (32, 32), (31, 40), (20, 40)])
def test_v2_does_not_search_wide_nodes_for_parts(count: int, hit: int) -> None:
    law = make_law(V2, {})
    *earlier, last = siblings(40, count + 1)
    for prompt in earlier:
        ask(law, prompt)
    got = ask(law, last)
    assert got.hit_len == hit
    assert got.ledger.tokens(Cause.GRANULE) == 40 - hit


@pytest.mark.parametrize(("length", "hit"), [(500, 499), (700, 500), (300, 0)])
@pytest.mark.parametrize("kept", [{"commit_min_snapshot": True}, {"policy": "per_request"}])
def test_v2_window_kept_only_at_the_end(kept: dict[str, Any], length: int, hit: int) -> None:
    options = {"groups": ["full", "swa:64"], **kept}
    got = after(V2, options, range(500), range(length))
    assert got.hit_len == hit
    assert got.per_group["full"] == min(length - 1, 500)
    assert got.ledger.tokens(Cause.WINDOW) == min(length - 1, 500) - hit


def test_v2_window_kept_everywhere_under_all_reusable() -> None:
    options = {"groups": ["full", "swa:64"]}
    assert [after(V2, options, range(500), range(n)).hit_len for n in (500, 700, 300)] == [499, 500, 299]


@pytest.mark.parametrize(("length", "hit"), [(512, 256), (513, 512), (300, 256), (256, 0), (257, 256)])
@pytest.mark.parametrize("partial", [False, True])
def test_v2_snapshots_at_256_and_512(partial: bool, length: int, hit: int) -> None:
    options = {"groups": ["full", "gdn"], "periodic_snapshot_interval": 256, "enable_partial_reuse": partial}
    law = make_law(V2, options)
    first = law.admit(request(range(512), max_tokens=1))
    ends = []
    while first.computed_len < 512:
        ends.append(law.chunk_end(first))
        law.computed(first, ends[-1])
    law.release(first)
    assert ends == [256, 512]
    got = ask(law, range(length))
    assert got.hit_len == got.per_group["gdn"] == hit
    missing = min(length - 1, 512) - hit
    assert got.ledger.tokens(Cause.NO_STATE) + got.ledger.tokens(Cause.GRANULE) == missing


def test_v2_exact_repeat_of_a_prompt_that_ends_in_a_snapshot_misses_it() -> None:
    at_end = {"groups": ["full", "gdn"], "additional_snapshot_offsets_from_end": [0]}
    assert after(V2, at_end, range(300), range(300)).hit_len == 0
    assert after(V2, at_end, range(300), range(301)).hit_len == 300
    one_before = {"groups": ["full", "gdn"], "additional_snapshot_offsets_from_end": [1]}
    assert after(V2, one_before, range(300), range(300)).hit_len == 299


def test_v2_without_a_declared_snapshot_nothing_is_ever_reusable() -> None:
    got = after(V2, {"groups": ["full", "gdn"]}, range(300), range(300))
    assert got.ledger.by_cause() == {Cause.NO_STATE: 299, Cause.LAST_TOKEN: 1}


def test_v2_a_block_keeps_only_its_latest_snapshot() -> None:
    options = {"groups": ["full", "gdn"], "additional_snapshot_offsets_from_start": [70, 90]}
    law = make_law(V2, options)
    ask(law, range(200))
    assert ask(law, [*range(80), 5000]).hit_len == 0  # 70 and 90 lie in one block: 90 took the slot
    assert ask(law, range(95)).hit_len == 90


def test_v2_sink_blocks_are_needed_and_kept() -> None:
    options = {"groups": ["full", "swa:64"], "sink_token_length": 4, "commit_min_snapshot": True}
    law = make_law(V2, options)
    ask(law, range(500))
    lease = law.admit(request(range(700)))
    assert isinstance(lease.held, HeldV2)
    table = lease.held.tables["swa:64"]
    assert [index for index, page in enumerate(table) if page is None] == list(range(1, 13))  # (500 + 1 - 64) // 32


def test_v2_chunk_ends_keep_windows_when_commits_do() -> None:
    options = {"groups": ["full", "swa:64"], "commit_min_snapshot": True, "max_num_tokens": 300}
    assert after(V2, options, range(500), range(400)).hit_len == 288  # the chunk ended at a block border
    assert after(V2, options, range(500), range(289)).hit_len == 288


def test_generated_tokens_are_found_in_v1_and_never_in_v2() -> None:
    output = list(range(900, 940))
    turn = [*range(100), *output, *range(2000, 2050)]
    for law_id, hit in [(V1, 139), (V2, 100)]:  # the last generated token has no KV
        law = make_law(law_id, {})
        ask(law, range(100), output=output)
        got = ask(law, turn)
        assert (law_id, got.hit_len) == (law_id, hit)
        assert got.ledger.tokens(Cause.EVICTED) == 139 - hit


# --- V1's own rules ---------------------------------------------------------------------------------------------------


def test_t1_shared_200_of_400() -> None:
    """TensorRT-LLM #1043 and #975: 200 shared tokens."""
    prompts = siblings(200, 2, tail=200)
    assert after(V1, {"tokens_per_block": 128, "enable_partial_reuse": False}, *prompts).hit_len == 128
    assert after(V1, {"tokens_per_block": 32, "enable_partial_reuse": True}, *prompts).hit_len == 200
    assert after(V1, {"tokens_per_block": 32, "enable_partial_reuse": False}, *prompts).hit_len == 192


def test_t3_cyclic_windows_store_nothing_once_the_sequence_outgrows_the_least() -> None:
    """TensorRT-LLM PR 2983, #2912; the check used the largest window. Linear windows came with PR 6768."""
    groups = {"groups": ["swa:4096", "swa:131072"]}
    got = after(CYCLIC, groups, range(5000), range(5000))
    assert got.hit_len == 0
    assert got.ledger.by_cause() == {Cause.WINDOW: 4999, Cause.LAST_TOKEN: 1}
    assert after(CYCLIC, groups, range(4000), range(4000)).hit_len == 3999
    assert after(V1, groups, range(5000), range(5000)).hit_len == 4999


def test_t5_blocks_are_found_when_the_context_ends() -> None:
    """TensorRT-LLM #3733, PR 4028, PR 6683: not before that, and not only when the first request has finished."""
    law = make_law(V1, {"enable_partial_reuse": False})
    prompt = tuple(range(4096))
    running = law.admit(request(prompt, "a", max_tokens=50))
    together = law.admit(request(prompt, "b"))
    assert together.expectation.ledger.by_cause() == {Cause.NOVEL: 4096}
    law.computed(running, 2048)
    chunked = law.admit(request(prompt, "c"))
    assert chunked.expectation.ledger.by_cause() == {Cause.IN_FLIGHT: 2048, Cause.NOVEL: 2048}
    law.computed(running, 4096)
    later = law.admit(request(prompt, "d"))
    assert later.expectation.hit_len == 4064
    law.check_integrity()
    for lease in (running, together, chunked, later):
        law.computed(lease, 4096)
        law.release(lease)
    law.check_integrity()
    law.reset()
    assert ask(law, prompt).hit_len == 0


def test_v1_sliding_windows_store_only_at_the_end() -> None:
    law = make_law(V1, {"groups": ["full", "swa:64"]})
    running = law.admit(request(range(200), "a", max_tokens=8))
    law.computed(running, 200)
    meanwhile = law.admit(request(range(200), "b"))
    assert meanwhile.expectation.per_group == {"full": 192, "swa:64": 0}
    assert meanwhile.expectation.ledger.tokens(Cause.IN_FLIGHT) == 199
    for lease in (running, meanwhile):
        law.computed(lease, 200)
        law.release(lease)
    assert ask(law, range(200)).hit_len == 199


def test_v1_takes_an_unused_leaf_over_and_copies_everything_else() -> None:
    law = make_law(V1, {"tokens_per_block": 32})
    assert isinstance(law, TrtllmV1)
    ask(law, range(40))  # block 0, and a short leaf with 8 tokens
    (leaf,) = [block for block in law.trees["full"].stored() if len(block.ids) == 8]
    taker = law.admit(request([*range(36), 500, 501], "b"))
    assert taker.expectation.hit_len == 36
    assert isinstance(taker.held, dict) and taker.held["full"][1] is leaf
    gone = law.admit(request(range(40), "c"))
    assert gone.expectation.hit_len == 32
    assert gone.expectation.ledger.by_cause() == {Cause.REUSED: 32, Cause.EVICTED: 7, Cause.LAST_TOKEN: 1}
    law.check_integrity()
    for lease in (taker, gone):
        law.computed(lease, lease.request.prompt_len)
        law.release(lease)
    holder = law.admit(request(range(40), "d"))  # its leaf is in use from here on
    copier = law.admit(request([*range(36), 700], "e"))
    assert isinstance(holder.held, dict) and isinstance(copier.held, dict)
    assert copier.expectation.hit_len == 36
    assert not set(map(id, holder.held["full"][1:])) & set(map(id, copier.held["full"][1:]))
    for lease in (holder, copier):
        law.computed(lease, lease.request.prompt_len)
        law.release(lease)
    law.check_integrity()


def test_v1_without_copying_a_block_with_blocks_below_it_is_not_used_in_part() -> None:
    prompts = siblings(40, 2)
    assert after(V1, {}, *prompts).hit_len == 40
    got = after(V1, {"copy_on_partial_reuse": False}, *prompts)
    assert got.hit_len == 32
    assert got.ledger.tokens(Cause.GRANULE) == 8


def test_v1_refuses_where_a_hash_map_decides() -> None:
    law = make_law(V1, {})
    held = [law.admit(request([1, 2, tail, 4], str(tail))) for tail in (5, 6)]
    for lease in held:
        law.computed(lease, 4)
        law.release(lease)
    with pytest.raises(LawDoesNotCover, match="2 stored blocks match 2 leading tokens"):
        law.admit(request([1, 2, 7, 8]))
    law.check_integrity()


# --- the two-stage budget ---------------------------------------------------------------------------------------------


def test_estimate_counts_whole_blocks_and_admission_finds_more() -> None:
    law = make_law(V1, {})
    assert isinstance(law, TrtllmV1)
    ask(law, range(200))
    guess = estimate(law, request(range(200)))
    assert (guess.reusable_blocks_all, guess.reusable_blocks_allocated, guess.tokens) == (6, 0, 192)
    assert estimate(law, request(range(200)), credit_unused=False).tokens == 0  # before PR 15066
    running = law.admit(request(range(200), "a"))
    assert running.expectation.hit_len == 199
    guess = estimate(law, request(range(200)), credit_unused=False)
    assert (guess.reusable_blocks_allocated, guess.tokens) == (6, 192)
    law.computed(running, 200)
    law.release(running)
    # Whole prompts of whole blocks: the estimate forgets the cap that admission keeps.
    law.reset()
    ask(law, range(64))
    assert estimate(law, request(range(64))).tokens == 64
    assert ask(law, range(64)).hit_len == 63
    windows = make_law(V1, {"groups": ["full", "swa:64"]})
    assert isinstance(windows, TrtllmV1)
    with pytest.raises(LawDoesNotCover, match="windows of several sizes"):
        estimate(windows, request(range(64)))


@pytest.mark.parametrize(
    ("budget", "already", "chunks", "expected"),
    [
        (512, 0, [(1024, 256, 0)] * 3, [True, True, False]),
        (512, 0, [(1024, 128, 896)] * 3, [True, True, True]),
        (512, 300, [(1024, 256, 0)], [False]),
        (512, 6, [(1024, 600, 0)], [False]),
        (512, 1, [(1024, 256, 0)], [True]),
        (512, 64, [(512, 256, 0)] * 2, [True, False]),
    ],
)
def test_the_guard_before_admission(
    budget: int, already: int, chunks: list[tuple[int, int, int]], expected: list[bool]
) -> None:
    """Arithmetic of TensorRT-LLM's own test of the guard in KVCacheManager.prepare_resources (2026)."""
    waiting = [FirstChunk(prompt_len=p, chunk_tokens=c, reusable_tokens=r) for p, c, r in chunks]
    assert list(admitted(budget, already, waiting)) == expected


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law_id", [V1, V2])
def test_scopes_and_switches(law_id: str) -> None:
    law = make_law(law_id, {})
    ask(law, range(100), namespace="a")
    assert ask(law, range(100), namespace="b").ledger.by_cause() == {Cause.NAMESPACE: 100}
    assert ask(law, range(100), namespace="a", lora="x").ledger.by_cause() == {Cause.NAMESPACE: 100}
    assert ask(law, range(100), namespace="a").hit_len == 99
    off = after(law_id, {"enable_block_reuse": False}, range(100), range(100))
    assert off.ledger.by_cause() == {Cause.DISABLED: 99, Cause.LAST_TOKEN: 1}


@pytest.mark.parametrize(
    ("law_id", "options"),
    [
        (V1, {"groups": ["full", "gdn"]}),
        (V1, {"tokens_per_block": 48}),
        (V1, {"groups": ["full:64"]}),
        (V2, {"policy": "per_conversation"}),
        (V2, {"groups": ["full", "gdn"], "commit_min_snapshot": False}),
        (V2, {"max_num_tokens": 8}),
        (V2, {"additional_snapshot_offsets_from_start": [0]}),
    ],
)
def test_refusals(law_id: str, options: dict[str, Any]) -> None:
    with pytest.raises(LawDoesNotCover):
        make_law(law_id, options)


@pytest.mark.parametrize("law_id", [V1, V2])
def test_no_law_for_pools_and_prompt_logprobs(law_id: str) -> None:
    with pytest.raises(LawDoesNotCover, match="bounded pool"):
        make_law(law_id, {}, pool_tokens=1024)
    with pytest.raises(LawDoesNotCover, match="prompt_logprobs"):
        make_law(law_id, {}).admit(request(range(9), features=frozenset({Feature.PROMPT_LOGPROBS})))


PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 9)), min_size=1, max_size=14
)
OPTIONS = [
    (V1, {}),
    (V1, {"enable_partial_reuse": False}),
    (V1, {"copy_on_partial_reuse": False}),
    (V1, {"groups": ["full", "swa:8"]}),
    (V2, {}),
    (V2, {"enable_partial_reuse": False, "groups": ["full", "swa:6"], "commit_min_snapshot": True}),
    (V2, {"groups": ["full", "swa:6", "gdn"], "periodic_snapshot_interval": 5, "max_num_tokens": 8}),
    (V2, {"groups": ["full"], "reuse_match_backoff": 2}),
]


@pytest.mark.parametrize(("law_id", "options"), OPTIONS)
@settings(max_examples=40)
@given(prompts=PROMPTS)
def test_books_and_ledgers_hold(law_id: str, options: dict[str, Any], prompts: list[tuple[list[int], int]]) -> None:
    law = make_law(law_id, {"tokens_per_block": 4, **options})
    computed: list[list[int]] = []
    for ids, outputs in prompts:
        output = [(sum(ids) + i) % 2 for i in range(outputs)]
        try:
            got = ask(law, ids, output=output)
        except LawDoesNotCover:
            law.check_integrity()
            continue
        longest = max((common(ids, seen) for seen in computed), default=0)
        assert got.hit_len <= min(longest, len(ids) - 1)
        assert got.ledger.reused == got.hit_len == min(got.hit_len, *got.per_group.values())
        computed.append(ids + output[:-1])


@pytest.mark.parametrize(("law_id", "options"), OPTIONS)
@settings(max_examples=40)
@given(prompts=PROMPTS, order=st.randoms(use_true_random=False))
def test_books_hold_with_overlapping_requests(
    law_id: str, options: dict[str, Any], prompts: list[tuple[list[int], int]], order: Any
) -> None:
    law = make_law(law_id, {"tokens_per_block": 4, **options})
    open_leases: list[Lease] = []
    for number, (ids, outputs) in enumerate(prompts):
        try:
            open_leases.append(law.admit(request(ids, str(number), max_tokens=outputs)))
        except LawDoesNotCover:
            continue
        for lease in order.sample(open_leases, k=len(open_leases) // 2):
            if lease.computed_len < lease.request.prompt_len:
                law.computed(lease, law.chunk_end(lease))
            else:
                open_leases.remove(lease)
                law.release(lease)
            law.check_integrity()
    for lease in open_leases:
        law.release(lease)
    law.check_integrity()
    law.reset()


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_what_is_covered_names_the_kind_of_windows() -> None:
    covers = {law_id: LAWS[law_id].covers for law_id in ("tensorrt-llm@v1", "tensorrt-llm@v1-cyclic")}
    assert covers["tensorrt-llm@v1"].endswith("linear windows (PR 6768 and later)")
    assert covers["tensorrt-llm@v1-cyclic"].endswith("cyclic windows (before PR 6768)")
