"""Borders of SGLang's rules: which token decides, what one place more changes, and who loses what in a full pool.

Source: SGLang 0.5.23, as read by `reference_engine.laws.sglang`; the sequences of `recorded_answers` hold the same
rules against the engine's own code.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_engine.laws.base import Expectation, PoolExhausted
from reference_engine.laws.registry import make_law
from reference_engine.laws.sglang.law import SglangLaw
from reference_engine.laws.sglang.queue import longest_first, send_together
from tests.laws.tagged_memory import TaggedMemory
from vocabulary.engine import Feature, TokenRequest
from vocabulary.ledger import Cause

X = list(range(100, 5100))
SWA, GDN = ["full", "swa:128"], ["full", "gdn"]


def law(pool_tokens: int | None = None, **options: Any) -> SglangLaw:
    made = make_law("sglang@0.5.23", options, pool_tokens=pool_tokens)
    assert isinstance(made, SglangLaw)
    return made


def request(ids: Sequence[int], outputs: int = 1, name: str = "r", **fields: Any) -> TokenRequest:
    return TokenRequest(request_id=name, ids=tuple(ids), max_tokens=outputs, **fields)


def ask(law: SglangLaw, ids: Sequence[int], output: Sequence[int] = (7,), **fields: Any) -> Expectation:
    expectation = law.serve(request(ids, len(output), **fields), output)
    law.check_integrity()
    return expectation


# Steps


@pytest.mark.parametrize(
    ("page", "chunk", "length", "ends"),
    [
        (1, 100, 100, [100]),
        (1, 100, 101, [100, 101]),
        (16, 100, 96, [96]),
        (16, 100, 97, [96, 97]),  # the first step counts in whole pages
        (16, 100, 196, [96, 196]),  # the later ones do not
        (16, 100, 300, [96, 196, 296, 300]),
        (16, 16, 33, [16, 32, 33]),
    ],
)
def test_ends_of_steps(page: int, chunk: int, length: int, ends: list[int]) -> None:
    for offset in (0, 5 * page):  # the same behind a hit
        cache = law(page_size=page, chunked_prefill_size=chunk)
        if offset:
            ask(cache, X[:offset])
        lease, found = cache.admit(request([*X[:offset], *X[1000 : 1000 + length]])), list[int]()
        assert lease.expectation.hit_len == offset
        while lease.computed_len < offset + length:
            cache.computed(lease, cache.chunk_end(lease))
            found.append(lease.computed_len - offset)
        assert found == ends


def test_a_step_that_others_share_is_shorter() -> None:
    cache = law(page_size=16, chunked_prefill_size=100)
    for budget, end in ((16, 16), (50, 48), (99, 96), (200, 96), (None, 96)):
        lease = cache.admit(request(X[:300]))
        assert cache.chunk_end(lease, budget) == end
        cache.release(lease)
    lease = cache.admit(request(X[:300]))
    with pytest.raises(PoolExhausted, match="no page left for the next step of request r"):
        cache.chunk_end(lease, 15)


def test_a_step_takes_room_for_a_page_more_where_pages_are_no_tokens() -> None:
    """Two prompts in the tree and room for just the third: with whole pages the oldest goes all the same."""
    for page, sizes, free in ((1, (30, 30, 40), 0), (4, (28, 28, 44), 7)):
        cache = law(page_size=page, max_total_tokens=100)
        for number, size in enumerate(sizes):
            ask(cache, X[1000 * number : 1000 * number + size])
        assert cache.pools.full.free == free


def test_a_whole_prompt_is_reserved_for_the_reference_engine() -> None:
    cache = law(160, page_size=16, chunked_prefill_size=32)
    lease = cache.admit(request(X[:100], 20))
    assert (cache.chunk_end(lease), cache.pools.full.free) == (100, 3)
    with pytest.raises(PoolExhausted, match="4 pages wanted, 1 missing"):
        cache.admit(request(X[1000:1049]))
    cache.check_integrity()
    cache.admit(request(X[1000:1048], name="s"))
    assert cache.pools.full.free == 0


def test_the_window_pool_cuts_a_step() -> None:
    """What is left of 512 tokens behind a page, and a window or the output; else the request would wait for ever."""
    for outputs, end in ((1, 480), (16, 480), (17, 464), (500, 368)):
        cache = law(
            groups=SWA, page_size=16, max_total_tokens=1280, swa_full_tokens_ratio=0.4, chunked_prefill_size=600
        )
        lease = cache.admit(request(X[:600], outputs))
        assert cache.chunk_end(lease) == end
    for ratio, found in ((0.1, None), (0.13, 16)):  # 128 and 160 tokens for a page, a window and the step
        cache = law(
            groups=SWA, page_size=16, max_total_tokens=1280, swa_full_tokens_ratio=ratio, chunked_prefill_size=600
        )
        lease = cache.admit(request(X[:400], 127))
        if found is None:
            with pytest.raises(PoolExhausted, match="needs 416 sliding-window tokens, 128 of 128 are left"):
                cache.chunk_end(lease)
        else:
            assert cache.chunk_end(lease) == found


# Decode


@pytest.mark.parametrize(
    ("page", "frees"), [(1, {456: 128, 584: 128}), (16, {448: 112, 560: 112})], ids=["page 1", "page 16"]
)
def test_windows_are_freed_during_decode(page: int, frees: dict[int, int]) -> None:
    """Once 128 tokens more have left the window of 128 (SGLANG_SWA_EVICTION_INTERVAL), in whole pages."""
    cache = law(groups=SWA, page_size=page, max_total_tokens=3200)
    lease = cache.admit(request(X[:200], 400))
    cache.computed(lease, cache.chunk_end(lease))
    found = {}
    for number in range(400):
        before = cache.pools.window.free
        cache.append(lease, number)
        assert before is not None and cache.pools.window.free is not None
        if cache.pools.window.free > before:
            taken = (lease.length - 1) % page == 0
            found[lease.length] = (cache.pools.window.free - before + taken) * page
        if number < 399:
            cache.computed(lease, lease.length)
        cache.check_integrity()
    assert found == frees
    cache.release(lease)
    cache.check_integrity()


def test_tokens_of_steps_that_accept_drafts_keep_their_order() -> None:
    cache = law()
    lease = cache.admit(request(X[:10], 8))
    cache.computed(lease, cache.chunk_end(lease))
    cache.append(lease, 70)
    cache.accepted(lease, (71, 72, 73))
    assert (lease.length, lease.computed_len) == (14, 11 + 2)
    cache.accepted(lease, (74, 75))
    cache.accepted(lease, (76,))
    assert (lease.length, lease.computed_len) == (17, 16)
    cache.release(lease)
    cache.check_integrity()
    assert ask(cache, [*X[:10], 70, 71, 72, 73, 74, 75, 76]).hit_len == 16


def test_one_token_is_kept() -> None:
    cache = law()
    assert [ask(cache, ids).hit_len for ids in ([5], [5, 6], [5, 7])] == [0, 1, 1]


# What goes first


@pytest.mark.parametrize("pairs", [False, True])
def test_output_goes_before_its_prompt(pairs: bool) -> None:
    """The prompt was put into the tree when its last step ended, and eviction takes leaves."""
    cache = law(max_total_tokens=110, speculative_algorithm="EAGLE" if pairs else None)
    ask(cache, X[:30], X[1000:1031])  # 60 in the tree, 50 free
    ask(cache, X[2000:2060])
    assert ask(cache, [*X[:30], *X[1000:1010]]).hit_len == 30 - pairs


def test_every_32nd_scheduling_counts_the_whole_prompt_as_used() -> None:
    """Its last page, which the lookup leaves out, then outlives another prompt; else it is what goes first."""
    lost = []
    for before in range(28, 64):
        cache = law(page_size=16, max_total_tokens=144)
        for _ in range(before - 3):
            ask(cache, [5])
        for prompt in (X[:64], X[:64], X[1000:1064], X[:64]):  # the last one is number `before`, counted from 0
            ask(cache, prompt)
        if ask(cache, X[1000:1064]).hit_len == 0:
            lost.append(before)
    assert lost == [32]


def test_a_tombstone_on_a_running_path_keeps_its_pages() -> None:
    """Who computes it anew gives back his own pages of full attention; where nobody reads it, the tree takes his."""
    for running in (True, False):
        cache = law(groups=SWA, chunked_prefill_size=256, max_total_tokens=4000)
        ask(cache, X[:1000])  # the tree keeps the window before each chunk end
        lease = cache.admit(request(X[:1001]))
        assert lease.expectation.hit_len == 1000
        pages = cache.slots(lease, 0, 0, 1000)
        if not running:
            cache.release(lease)
        assert ask(cache, [*X[:500], *X[2000:2010]]).hit_len == 256
        later = cache.admit(request([*X[:500], *X[2000:2020]], name="s"))
        assert later.expectation.hit_len == 500
        moved = np.flatnonzero(cache.slots(later, 0, 0, 500) != pages[:500])
        assert moved.tolist() == ([] if running else list(range(256, 384)))
        if running:
            assert np.array_equal(cache.slots(lease, 0, 0, 1000), pages)
        cache.check_integrity()


# Reasons


def lcp(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=20),
            st.integers(1, 4),
            st.sampled_from([None, None, "salt"]),
            st.booleans(),
        ),
        min_size=2,
        max_size=8,
    ),
    st.sampled_from([1, 3]),
    st.sampled_from([None, "EAGLE"]),
    st.integers(0, 9),
)
def test_the_reasons_of_full_attention_by_a_plain_statement(
    sends: list[tuple[list[int], int, str | None, bool]], page: int, algorithm: str | None, start: int
) -> None:
    cache = law(page_size=page, speculative_algorithm=algorithm, logprob_start_len=start)
    known: list[tuple[str | None, list[int]]] = []
    for ids, outputs, salt, logprobs in sends:
        output = [1] * outputs
        features = frozenset({Feature.PROMPT_LOGPROBS} if logprobs else ())
        found = ask(cache, ids, output, namespace=salt, features=features)
        anywhere = max((lcp(ids, seen) for _, seen in known), default=0)
        mine = max((lcp(ids, seen) for name, seen in known if name == salt), default=0)
        capped = min(mine, len(ids) - 1)
        limited = min(capped, start) if logprobs else capped
        paired = max(limited - (algorithm is not None), 0)
        hit = paired // page * page
        expected = {
            Cause.REUSED: hit,
            Cause.GRANULE: paired - hit,
            Cause.SUCCESSOR: limited - paired,
            Cause.DISABLED: capped - limited,
            Cause.LAST_TOKEN: mine - capped,
            Cause.NAMESPACE: anywhere - mine,
            Cause.NOVEL: len(ids) - anywhere,
        }
        assert found.ledger.by_cause() == {cause: tokens for cause, tokens in expected.items() if tokens}
        assert (found.hit_len, found.junction, found.per_group) == (hit, hit, {"full": hit})
        known.append((salt, ids + output[:-1]))


def causes(cache: SglangLaw, ids: Sequence[int]) -> dict[Cause, int]:
    return dict(ask(cache, ids).ledger.by_cause())


@pytest.mark.parametrize("page", [1, 16])
def test_what_a_pool_lost_and_what_no_state_was_kept_for(page: int) -> None:
    """A prompt of 300 in steps of 128: states behind 128 and 256, and at page 1 (`no_buffer`) behind the prompt."""
    cache = law(groups=GDN, page_size=page, chunked_prefill_size=128, max_total_tokens=608)
    end = 300 if page == 1 else 256
    ask(cache, X[:300])
    assert causes(cache, X[:250]) == {Cause.REUSED: 128, Cause.NO_STATE: 249 // page * page - 128} | {
        Cause.LAST_TOKEN: 1
    } | ({Cause.GRANULE: 9} if page > 1 else {})
    ask(cache, X[1000:1300])
    ask(cache, X[2000:2300])
    lost = causes(cache, [*X[:300], 5])
    kept = lost.pop(Cause.REUSED, 0)
    assert kept < end and lost.pop(Cause.NOVEL) == 1
    assert lost.pop(Cause.EVICTED) == end - kept
    assert lost == ({} if page == 1 else {Cause.NO_STATE: 288 - 256, Cause.GRANULE: 12})


@pytest.mark.parametrize(("most", "kept"), [(1, [1792, 1984]), (2, [1792, 1984]), (3, [1536, 1792, 1984])])
def test_a_path_keeps_its_deepest_states(most: int, kept: list[int]) -> None:
    """And the one that the request came from, which it still holds when the last is inserted."""
    cache = law(groups=GDN, page_size=16, chunked_prefill_size=256, mamba_max_states_per_path=most)
    ask(cache, X[:2000])
    assert sorted(node.end for node in cache.tree.nodes() if node.state is not None) == kept


def test_a_step_that_keeps_no_state_inserts_none() -> None:
    """Three slots do: the state of the first step in the tree, the running one, and one for the next to be kept."""
    cache = law(groups=GDN, page_size=16, chunked_prefill_size=128, max_mamba_cache_size=3)
    assert [ask(cache, X[:160], (7, 8)).hit_len for _ in range(2)] == [0, 128]


def test_a_fork_keeps_its_state() -> None:
    cache = law(groups=GDN, page_size=16, chunked_prefill_size=256, mamba_max_states_per_path=2)
    ask(cache, X[:600])
    ask(cache, [*X[:256], *X[2000:2100]])
    ask(cache, X[:2000])
    assert sorted({node.end for node in cache.tree.nodes() if node.state is not None}) == [256, 320, 1856, 1984]


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("pairs", [0, 1])
def test_what_a_window_lacks_and_where_the_next_sibling_will_resume(page: int, pairs: int) -> None:
    """Steps of 256 leave their windows; a sibling of 460 tokens resumes behind the first, its own behind all it can."""
    algorithm = "EAGLE" if pairs else None
    cache = law(groups=SWA, page_size=page, chunked_prefill_size=256, speculative_algorithm=algorithm)
    ask(cache, X[:1000])
    siblings = [[*X[:460], *X[1000 * n : 1000 * n + 40]] for n in (2, 3)]
    deep, hit = (460 - pairs) // page * page, (256 - pairs) // page * page
    found = ask(cache, siblings[0])
    rest = {Cause.NOVEL: 40} | ({Cause.SUCCESSOR: 1} if pairs else {})
    rest |= {Cause.GRANULE: 460 - pairs - deep} if deep < 460 - pairs else {}
    assert found.ledger.by_cause() == {Cause.REUSED: hit, Cause.WINDOW: deep - hit} | rest
    assert (found.junction, found.per_group) == (deep, {"full": deep, "swa:128": hit})
    found = ask(cache, siblings[1])
    assert found.ledger.by_cause() == {Cause.REUSED: deep} | rest
    assert (found.junction, found.per_group) == (deep, {"full": deep, "swa:128": deep})


def test_what_a_request_computed_before_it_was_given_up_is_nobodys() -> None:
    """Its chunks can be found; but it is no prompt that has been computed, which its loss would be told from."""
    for others, expected in ((0, {Cause.REUSED: 96, Cause.NOVEL: 104}), (3, {Cause.NOVEL: 200})):
        cache = law(page_size=16, chunked_prefill_size=96, max_total_tokens=400)
        lease = cache.admit(request(X[:200]))
        cache.computed(lease, cache.chunk_end(lease))
        cache.release(lease)
        for number in range(others):
            ask(cache, X[1000 * number + 1000 : 1000 * number + 1300])
        assert causes(cache, X[:200]) == expected


def test_what_a_pool_lost_of_pairs_with_a_window() -> None:
    """All of a prompt was in the tree but its last token, which has no successor there."""
    for algorithm, pairs in ((None, 0), ("EAGLE", 1)):
        cache = law(groups=SWA, max_total_tokens=700, speculative_algorithm=algorithm, swa_full_tokens_ratio=1)
        ask(cache, X[:200])
        ask(cache, X[1000:1600])
        found = causes(cache, [*X[:200], 5])
        assert found == {Cause.EVICTED: 200 - pairs, Cause.NOVEL: 1} | ({Cause.SUCCESSOR: 1} if pairs else {})


# Requests that wait together


def order(cache: SglangLaw, **waiting: Sequence[int]) -> str:
    requests = [request(ids, name=name) for name, ids in waiting.items()]
    return " ".join(each.request_id for each in longest_first(cache, requests))


def test_who_is_held_back() -> None:
    """Whoever matches at most 32 tokens and shares at least 32 with one before it that matches at most 32."""
    new, other = X[1000:1100], X[2000:2100]
    shares = {length: [*new[:length], *X[3000:3050]] for length in (31, 32)}
    assert order(law(), new=new, shares=shares[31], other=other) == "new shares other"
    assert order(law(), new=new, shares=shares[32], other=other) == "new other shares"
    cache = law()
    ask(cache, X[:200])
    one, two = ([*X[:n], *other[:50]] for n in (32, 33))
    assert order(cache, first=one, second=one, last=new) == "first last second"
    assert order(cache, first=two, second=two, last=new) == "first second last"
    assert order(cache, matched=two, less=[*X[:32], *new[:50]], last=other) == "matched less last"
    assert order(cache, held=one, shares=shares[32], matched=two) == "matched held shares"


def test_a_salt_shares_nothing_with_others_that_wait() -> None:
    cache = law()
    waiting = [
        request(X[:100], name="plain"),
        request(X[:100], name="salted", namespace="a"),
        request(X[:100], name="again", namespace="a"),
        request(X[1000:1100], name="last"),
    ]
    assert [each.request_id for each in longest_first(cache, waiting)] == ["plain", "salted", "last", "again"]


def test_a_match_counts_up_to_the_last_token() -> None:
    cache = law()
    ask(cache, X[:60])
    assert order(cache, whole=X[:50], longer=[*X[:50], 3], part=[*X[:49], 3]) == "longer whole part"
    assert order(cache, part=[*X[:49], 3], whole=X[:50]) == "part whole"


def together(cache: SglangLaw, prompts: Sequence[Sequence[int]], **options: Any) -> list[int]:
    requests = [request(ids, name=str(number)) for number, ids in enumerate(prompts)]
    found = [each.hit_len for each in send_together(cache, requests, **options)]
    for each in requests:
        cache.finish(each, [7])
    cache.check_integrity()
    return found


@pytest.mark.parametrize(("chunk", "hits"), [(95, [0, 0, 48]), (111, [0, 0, 48]), (112, [0, 0, 0])])
def test_a_step_has_room_for_another_while_a_page_is_left(chunk: int, hits: list[int]) -> None:
    """Two prompts of 50 and 20 tokens take four pages and two."""
    prompts = [[*X[:48], 1, 2], X[1000:1020], [*X[:48], *X[3000:3010]]]
    assert together(law(page_size=16, chunked_prefill_size=chunk), prompts) == hits


@pytest.mark.parametrize(("most", "hits"), [(63, [0, 48]), (64, [0, 48]), (65, [0, 0])])
def test_a_step_has_room_for_another_while_a_token_is_left(most: int, hits: list[int]) -> None:
    """The first prompt takes four pages of `max_prefill_tokens`, which with chunks may be exceeded."""
    prompts = [[*X[:48], 1, 2], [*X[:48], 3, 4]]
    assert together(law(page_size=16, chunked_prefill_size=1000), prompts, max_prefill_tokens=most) == hits


@pytest.mark.parametrize(("rest", "hits"), [(48, [0, 0, 0]), (49, [0, 0, 16])])
def test_an_unfinished_prompt_goes_first(rest: int, hits: list[int]) -> None:
    """Steps of 96: its last `rest` tokens, then a prompt of two pages; the third joins while a page is left."""
    prompts = [X[: 96 + rest], X[1000:1030], [*X[1000:1030], 5]]
    assert together(law(page_size=16, chunked_prefill_size=96), prompts) == hits


# Everything at once


RUNNING: list[tuple[int | None, dict[str, Any]]] = [
    (None, {"page_size": 1, "max_total_tokens": 700, "speculative_algorithm": "EAGLE", "chunked_prefill_size": 100}),
    (None, {"groups": ["full", "swa:40"], "page_size": 1, "max_total_tokens": 1200, "chunked_prefill_size": 64}),
    (None, {"groups": ["full", "swa:40"], "page_size": 16, "max_total_tokens": 1600, "swa_full_tokens_ratio": 0.5}),
    (None, {"groups": GDN, "page_size": 1, "max_mamba_cache_size": 12, "chunked_prefill_size": 64}),
    (None, {"groups": GDN, "page_size": 16, "max_mamba_cache_size": 16, "mamba_track_interval": 64}),
    (None, {"groups": GDN, "page_size": 16, "max_mamba_cache_size": 16, "chunked_prefill_size": 80}),
    (800, {"page_size": 16}),
    (1600, {"groups": ["full", "swa:40"], "page_size": 16}),
    (1600, {"groups": GDN, "page_size": 1, "max_mamba_cache_size": 14, "mamba_radix_cache_strategy": "extra_buffer"}),
]


@pytest.mark.parametrize(("pool", "options"), RUNNING, ids=str)
def test_every_place_holds_what_running_requests_read(pool: int | None, options: dict[str, Any]) -> None:
    """Up to three at a time, step by step in random order, in little room."""
    memory, rng = TaggedMemory(law(pool, **options)), random.Random(3)
    known, running, finished, hits, number = [[0]], list[Iterator[Expectation]](), 0, 0, 0
    while finished < 60:
        if len(running) < 3 and rng.random() < 0.3:
            ids = rng.choice(known)
            ids = ids[: rng.choice([len(ids), rng.randrange(len(ids) + 1)])]
            ids = (ids + [rng.randrange(1000) for _ in range(rng.choice([1, 15, 16, 17, 33, 64, 100]))])[:300]
            output = [rng.randrange(1000) for _ in range(rng.choice([1, 1, 2, 20, 70]))]
            known, number = [*known[-12:], ids + output[:-1]], number + 1
            running.append(memory.steps(request(ids, len(output), str(number)), output))
        if not running:
            continue
        one = rng.choice(running)
        try:
            hits += next(one).hit_len > 0
        except (StopIteration, PoolExhausted):
            running.remove(one)
            finished += 1
    assert hits > 100


def test_windows_that_a_step_frees_come_before_those_of_others() -> None:
    """Window 130: 112 tokens leave with the token behind a page's first, when the pool of 29 pages is full."""
    cache = law(groups=["full", "swa:130"], page_size=16, max_total_tokens=1600, swa_full_tokens_ratio=0.29)
    for number in range(10):
        ask(cache, X[1000 + 20 * number : 1016 + 20 * number])
    lease, found = cache.admit(request(X[:200], 300)), {}
    cache.computed(lease, cache.chunk_end(lease))
    for number in range(260):
        cache.append(lease, number)
        found[lease.length - 1] = cache.pools.window.free, cache.tree.evictable_window_pages
        cache.computed(lease, lease.length)
    assert [found[at] for at in (431, 432, 433, 447, 448, 449)] == [(1, 3), (0, 3), (1, 2), (1, 2), (0, 2), (7, 2)]
