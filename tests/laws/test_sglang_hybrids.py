"""SGLang's law against tables measured with its real scheduler, and against public reports.

"measured" numbers were taken with SGLang 0.5.23 on a CPU (null forward, tiny models) before this law existed; S-numbers
are public issues and pull requests, named where they stand. `X` is one fixed random-looking prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.laws.base import Expectation, PoolExhausted
from reference_engine.laws.registry import make_law
from reference_engine.laws.sglang.held import Held
from reference_engine.laws.sglang.law import SglangLaw
from reference_engine.laws.sglang.queue import longest_first, send_together
from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import LawDoesNotCover, UsageError
from vocabulary.ledger import Cause

X = list(range(100, 25100))
"""A prompt without repetition."""
SHARED = X[:1026]
A, B = SHARED + [90] * 12, SHARED + [91] * 12
"""1,038 tokens, 1,026 of them common."""
B17 = [*B[:17], 99, *B[18:]]
"""B with its 18th token changed."""
GDN, SWA = ["full", "gdn"], ["full", "swa:128"]


def law(**options: Any) -> SglangLaw:
    made = make_law("sglang@0.5.23", options)
    assert isinstance(made, SglangLaw)
    return made


def ask(law: SglangLaw, ids: Sequence[int], output: Sequence[int] = (7,), **fields: Any) -> Expectation:
    """Send one request with its output; the books have to add up behind it."""
    request = TokenRequest(request_id="r", ids=tuple(ids), max_tokens=len(output), **fields)
    expectation = law.send(request)
    law.finish(request, output)
    law.check_integrity()
    assert expectation.ledger.reused == expectation.hit_len == expectation.position_start
    assert not expectation.ledger.tokens(Cause.UNEXPLAINED)
    assert expectation.junction >= expectation.hit_len
    return expectation


def hits(law: SglangLaw, *prompts: Sequence[int]) -> list[int]:
    return [ask(law, prompt).hit_len for prompt in prompts]


def prefixes(*lengths: int) -> list[list[int]]:
    return [X[:length] for length in lengths]


def siblings(shared: int, own: int, count: int = 4) -> list[list[int]]:
    return [X[:shared] + [60 + number] * own for number in range(count)]


# Full attention and EAGLE's keys


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("delta", [-1, 0, 1, 2])
def test_repeats_at_page_edges(page: int, k: int, delta: int) -> None:
    """Measured: plain floor((L-1)/page), with pairs floor((L-2)/page)."""
    length = k * page + delta
    if not length:
        return
    prompt = X[:length]
    assert hits(law(page_size=page), prompt, prompt, prompt) == [0] + [(length - 1) // page * page] * 2
    eagle = law(page_size=page, speculative_algorithm="EAGLE")
    assert hits(eagle, prompt, prompt, prompt) == [0] + [max(length - 2, 0) // page * page] * 2


@pytest.mark.parametrize(
    ("page", "plain", "eagle"),
    [
        (1, [0, 1037, 1026, 17, 1037], [0, 1036, 1025, 16, 1036]),
        (16, [0, 1024, 1024, 16, 1024], [0, 1024, 1024, 0, 1024]),
        (64, [0, 1024, 1024, 0, 1024], [0, 1024, 1024, 0, 1024]),
    ],
)
def test_a_repeated_a_sibling_and_an_edit(page: int, plain: list[int], eagle: list[int]) -> None:
    """Measured: the founding comparison, with both kinds of keys; 16 pairs need 17 equal tokens."""
    assert hits(law(page_size=page), A, A, B, B17, A) == plain
    eagle_law = law(page_size=page, speculative_algorithm="EAGLE")
    # The edit at index 17 leaves 17 equal tokens, so 16 pairs.
    expected = [*eagle[:3], 16 // page * page, eagle[4]]
    assert hits(eagle_law, A, A, B, B17, A) == expected


@pytest.mark.parametrize(("page", "expected"), [(1, 1023), (16, 1008), (64, 960)])
def test_a_pair_needs_the_token_behind(page: int, expected: int) -> None:
    """Measured: exactly 1,024 common tokens under EAGLE."""
    eagle = law(page_size=page, speculative_algorithm="EAGLE")
    first, second = X[:1024] + [1] * 20, X[:1024] + [2] * 20
    ask(eagle, first)
    reply = ask(eagle, second)
    assert reply.hit_len == expected
    assert reply.ledger.tokens(Cause.SUCCESSOR) == 1


@pytest.mark.parametrize(
    ("page", "table"),
    [
        (1, {256: 255, 257: 256}),
        (16, {64: 48, 65: 64, 128: 112, 129: 128, 256: 240, 257: 256}),
        (64, {64: 0, 65: 64, 128: 64, 129: 128, 256: 192, 257: 256}),
        (128, {256: 128, 257: 256}),
    ],
)
def test_s5_cached_tokens_off_by_one(page: int, table: dict[int, int]) -> None:
    """sglang #27206: the cap, then the page floor."""
    for length, expected in table.items():
        assert hits(law(page_size=page), *prefixes(length, length)) == [0, expected]


@pytest.mark.parametrize(
    ("page", "table", "divergence"),
    [(1, {256: 254, 257: 255}, 127), (16, {256: 240, 257: 240}, 112), (64, {65: 0, 66: 64, 257: 192}, 64)],
)
def test_s6_eagle_needs_the_successor(page: int, table: dict[int, int], divergence: int) -> None:
    """sglang PR 10846: repeats, and two prompts of 256 tokens with 128 in common."""
    for length, expected in table.items():
        assert hits(law(page_size=page, speculative_algorithm="EAGLE3"), *prefixes(length, length)) == [0, expected]
    pair = siblings(128, 128, 2)
    assert hits(law(page_size=page, speculative_algorithm="NEXTN"), *pair) == [0, divergence]


def test_s10_log_probabilities_of_the_prompt_cap_the_lookup() -> None:
    """strands-sglang #34: from position 0 nothing is reused, from position s at most s tokens."""
    asked = frozenset({Feature.PROMPT_LOGPROBS})
    plain = law(page_size=16)
    ask(plain, X[:500])
    nothing = ask(plain, X[:500], features=asked)
    assert (nothing.hit_len, nothing.ledger.tokens(Cause.DISABLED)) == (0, 499)
    capped = law(page_size=16, logprob_start_len=100)
    ask(capped, X[:500])
    assert ask(capped, X[:500], features=asked).hit_len == 96
    assert ask(capped, X[:500], features=frozenset({Feature.LOGPROB})).hit_len == 496


def test_s13_the_whole_prompt_is_looked_up_before_it_is_chunked() -> None:
    """ai-dynamo #13188: a simulator that looked up one chunk reported 8,192."""
    assert hits(law(chunked_prefill_size=8192), *prefixes(16384, 16384)) == [0, 16383]


@pytest.mark.parametrize(
    ("page", "prompt", "output", "expected"), [(1, 8, 9, 16), (16, 53, 39, 80), (64, 197, 135, 320)]
)
def test_generated_tokens_are_kept(page: int, prompt: int, output: int, expected: int) -> None:
    """Measured: P + n - 1 positions."""
    plain = law(page_size=page)
    ask(plain, X[:prompt], X[prompt : prompt + output])
    assert ask(plain, X[: prompt + output + 50]).hit_len == expected


# Recurrent states


@pytest.mark.parametrize(
    ("chunk", "rows"),
    [
        (
            4096,
            {
                "edit": [0, 0, 0, 0, 0],
                "shorter": [0, 0, 0, 0, 0, 0, 0, 1999],
                "grow": [0, 100, 300, 700, 700],
                "siblings": [0, 0, 0, 0],
            },
        ),
        (
            256,
            {
                "edit": [0, 1024, 1024, 0, 1024],
                "shorter": [0, 1792, 1280, 768, 768, 256, 0, 1999],
                "grow": [0, 100, 300, 700, 1468],
                "siblings": [0, 512, 512, 512],
            },
        ),
    ],
)
def test_no_buffer(chunk: int, rows: dict[str, list[int]]) -> None:
    """Measured: states only at chunk ends and at the end of finished requests."""
    options = {"groups": GDN, "chunked_prefill_size": chunk, "mamba_radix_cache_strategy": "no_buffer"}
    assert hits(law(**options), A, A, B, B17, A) == rows["edit"]
    assert hits(law(**options), *prefixes(2000, 1999, 1500, 1024, 1000, 512, 130, 2000)) == rows["shorter"]
    assert hits(law(**options), *prefixes(100, 300, 700, 1500, 1500)) == rows["grow"]
    assert hits(law(**options), *siblings(700, 300)) == rows["siblings"]
    chat = law(**options)
    ask(chat, X[:200], X[200:600])
    assert ask(chat, X[:605]).hit_len == 599
    for length in (64, 255, 256, 257):
        assert hits(law(**options), *prefixes(length, length)) == [0, 256 if (length, chunk) == (257, 256) else 0]


def test_s1_an_identical_prompt_misses_for_ever() -> None:
    """sglang #21158: the state lies at L, the lookup ends at L-1; a longer prompt hits."""
    same = law(groups=GDN)
    assert hits(same, *prefixes(1000, 1000, 1000)) == [0, 0, 0]
    longer = ask(law(groups=GDN), X[:1000])
    assert longer.hit_len == 0
    grown = law(groups=GDN)
    assert hits(grown, X[:1000], X[:1000] + [5] * 50, X[:1000] + [5] * 50) == [0, 1000, 1000]
    again = ask(same, X[:1000])
    assert again.per_group == {"full": 999, "gdn": 0}
    assert again.ledger.by_cause() == {Cause.NO_STATE: 999, Cause.LAST_TOKEN: 1}


EXTRA_BUFFER: dict[tuple[int, int | None], dict[str, list[int]]] = {
    (16, None): {
        "edit": [0, 1024, 1024, 0, 1024],
        "shorter": [0, 1984, 0, 0, 960, 0, 0, 0, 1984],
        "grow": [0, 64, 256, 640, 1472],
        "siblings": [0, 0, 640, 640],
        "repeats": [0, 0, 0, 0, 64, 64, 0, 0, 64, 0, 128, 128, 0, 0, 192, 0, 256, 256],
    },
    (128, None): {
        "edit": [0, 1024, 1024, 0, 1024],
        "shorter": [0, 1920, 0, 0, 896, 0, 0, 0, 1920],
        "grow": [0, 0, 256, 640, 1408],
        "siblings": [0, 0, 640, 640],
        "repeats": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 128, 0, 0, 128, 0, 256, 256],
    },
    (16, 256): {
        "edit": [0, 1024, 1024, 0, 1024],
        "shorter": [0, 1984, 1280, 768, 960, 256, 0, 0, 1984],
        "grow": [0, 64, 256, 640, 1472],
        "siblings": [0, 512, 640, 640],
        "repeats": [0, 0, 0, 0, 64, 64, 0, 0, 64, 0, 128, 128, 0, 0, 192, 0, 256, 256],
    },
    (16, 208): {
        "shorter": [0, 1856, 1440, 816, 816, 400, 0, 0, 1984],
        "grow": [0, 64, 256, 656, 1472],
        "siblings": [0, 608, 608, 608],
        "repeats": [0, 0, 0, 0, 64, 64, 0, 0, 64, 0, 128, 128, 0, 192, 192, 0, 192, 256],
    },
}
EXTRA_BUFFER |= {(1, None): EXTRA_BUFFER[16, None], (64, None): EXTRA_BUFFER[16, None]}


@pytest.mark.parametrize(("page", "chunk"), list(EXTRA_BUFFER))
def test_extra_buffer(page: int, chunk: int | None) -> None:
    """Measured: one state per step on a grid counted from the step's start, or at the branching point."""
    rows = EXTRA_BUFFER[page, chunk]
    options = {
        "groups": GDN,
        "page_size": page,
        "chunked_prefill_size": chunk,
        "mamba_radix_cache_strategy": "extra_buffer",
    }
    if "edit" in rows:
        assert hits(law(**options), A, A, B, B17, A) == rows["edit"]
    assert hits(law(**options), *prefixes(2000, 1999, 1500, 1024, 1000, 512, 130, 100, 2000)) == rows["shorter"]
    assert hits(law(**options), *prefixes(100, 300, 700, 1500, 1500)) == rows["grow"]
    assert hits(law(**options), *siblings(700, 300)) == rows["siblings"]
    lengths = (64, 65, 128, 129, 256, 257)
    repeats = [hit for length in lengths for hit in hits(law(**options), *prefixes(length, length, length))]
    assert repeats == rows["repeats"]


def test_states_during_decode() -> None:
    """Measured: 200 + 400 tokens keep a state at 512; the prompt again has its own at 192."""
    chat = law(groups=GDN, page_size=16)
    ask(chat, X[:200], X[200:600])
    assert ask(chat, X[:605]).hit_len == 512
    assert ask(chat, X[:200]).hit_len == 192


@pytest.mark.parametrize(
    ("length", "second", "third"),
    [
        (5120, 0, 5056),
        (6144, 0, 6080),
        (8192, 0, 8128),
        (12288, 8192, 12224),
        (16384, 8192, 16320),
        (20480, 16384, 20416),
        (5121, 5120, 5120),
        (63, 0, 0),
        (64, 0, 0),
        (65, 64, 64),
        (128, 0, 64),
        (129, 128, 128),
    ],
)
def test_s3_a_prompt_of_whole_chunks(length: int, second: int, third: int) -> None:
    """sglang PR 30882: chunk 64, chunked prefill 8,192; a multiple of 64 needs three sends."""
    options = {"groups": GDN, "page_size": 16, "chunked_prefill_size": 8192}
    assert hits(law(**options), *prefixes(length, length, length)) == [0, second, third]


def test_s4_pressure_drops_the_oldest_states() -> None:
    """sglang #36935: 3 chains of 32k leave 48 states, more than 40 slots: the first chain's go."""
    options = {"groups": GDN, "page_size": 16, "chunked_prefill_size": 2048, "max_mamba_cache_size": 40}
    pressed = law(**options)
    chains = [[number, *range(100, 32867)] for number in range(3)]
    assert hits(pressed, *chains) == [0, 0, 0]
    fork = ask(pressed, chains[0][:8192] + [5] * 100)
    assert fork.hit_len == 0
    assert fork.per_group["full"] == 8192
    assert fork.ledger.tokens(Cause.NO_STATE) == 8192
    roomy = law(**options | {"max_mamba_cache_size": 100})
    assert hits(roomy, *chains) == [0, 0, 0]
    assert ask(roomy, chains[0][:8192] + [5] * 100).hit_len == 8192


def test_states_per_path() -> None:
    capped = law(groups=GDN, page_size=16, chunked_prefill_size=256, mamba_max_states_per_path=2)
    ask(capped, X[:2000])
    assert capped.tree.state_recency.oldest() is not None
    assert sum(node.state is not None for node in capped.tree.nodes()) == 2
    assert hits(capped, *prefixes(1500, 2000)) == [0, 1984]


# Sliding windows


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (
            {"page_size": 1},
            {
                "edit": [0, 1037, 1026, 1037, 17, 1037],
                "shorter": [0, 1998, 1899, 1499, 1023, 511, 129, 99],
                "branches": [0, 700, 700, 150, 100],
                "chat": [0, 599, 199],
            },
        ),
        (
            {"page_size": 64},
            {
                "edit": [0, 1024, 1024, 1024, 0, 1024],
                "shorter": [0, 1984, 1856, 1472, 960, 448, 128, 64],
                "branches": [0, 640, 640, 128, 64],
                "chat": [0, 576, 192],
            },
        ),
        (
            {"page_size": 16, "chunked_prefill_size": 256, "max_total_tokens": 32768, "swa_full_tokens_ratio": 0.25},
            {
                "edit": [0, 1024, 1024, 1024, 0, 1024],
                "shorter": [0, 1984, 1888, 1280, 1008, 496, 0, 96],
                "branches": [0, 512, 688, 0, 96],
                "chat": [0, 592, 192],
            },
        ),
    ],
)
def test_sliding_window(options: dict[str, Any], rows: dict[str, list[int]]) -> None:
    """Measured, window 128: tombstones behind chunks, and a branching point that the second sibling leaves."""
    options = {"groups": SWA, **options}
    assert hits(law(**options), A, A, B, B, B17, A) == rows["edit"]
    assert hits(law(**options), *prefixes(2000, 1999, 1900, 1500, 1024, 512, 130, 100)) == rows["shorter"]
    tails = [[number] * length for number, length in ((1, 1000), (2, 300), (3, 300))]
    branches = [X[:700] + tails[0], X[:700] + tails[1], X[:700] + tails[2], X[:150] + tails[2], X[:100] + tails[2]]
    assert hits(law(**options), *branches) == rows["branches"]
    chat = law(**options)
    got = [ask(chat, X[:200], X[200:600]).hit_len, *hits(chat, X[:605], X[:200])]
    assert got == rows["chat"]


def test_siblings_of_a_long_shared_part() -> None:
    """Measured: window 128, chunk 8,192; 40,000 then three with 32,000 in common."""
    long = list(range(100, 40100))
    options = {"groups": ["full", "swa:128"], "chunked_prefill_size": 8192}
    shared = [long[:32000] + [number] * 50 for number in (1, 2, 3)]
    assert hits(law(**options), long, *shared) == [0, 24576, 32000, 32000]


# Requests that wait together


def together(made: SglangLaw, *prompts: Sequence[int], policy: str = "fcfs") -> list[int]:
    requests = [TokenRequest(request_id=f"t{number}", ids=tuple(ids)) for number, ids in enumerate(prompts)]
    expectations = send_together(made, requests, schedule_policy=policy)
    for request in requests:
        made.finish(request, [7])
    made.check_integrity()
    return [expectation.hit_len for expectation in expectations]


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_equal_prompts_in_one_queue(policy: str) -> None:
    """Measured: in one step they share nothing; once chunks fill the step, the others find the first one's pages."""
    same = X[:500]
    assert together(law(page_size=16), same, same, [*same, 5], policy=policy) == [0, 0, 0]
    chunks = law(page_size=16, chunked_prefill_size=128)
    assert together(chunks, same, same, [*same, 5], policy=policy) == [0, 496, 496]


def test_lpm_takes_the_longest_match_first_and_holds_equals_back() -> None:
    made = law(page_size=16)
    ask(made, X[:200])
    waiting = [
        TokenRequest(request_id=name, ids=tuple(ids))
        for name, ids in (("new", X[1000:1100]), ("equal", X[1000:1090]), ("short", X[:70]), ("long", X[:150]))
    ]
    assert [request.request_id for request in longest_first(made, waiting)] == ["long", "short", "new", "equal"]


# Pools, refusals, the reference engine's side


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=25),
    st.sampled_from([["full"], ["full", "swa:8"], ["full", "gdn"]]),
    st.sampled_from([1, 4]),
)
def test_bounded_pools_keep_their_books(sends: list[tuple[int, int, int]], groups: list[str], page: int) -> None:
    """Small pools, chunks and outputs: nothing is lost or owned twice, and no bounded hit is longer than a free one."""
    options: dict[str, Any] = {"groups": groups, "page_size": page, "chunked_prefill_size": 16}
    bounded = law(**options, max_total_tokens=160, max_mamba_cache_size=6)
    free = law(**options)
    for length, branch, outputs in sends:
        ids = X[: length // 2] + [branch] * (length - length // 2)
        output = [50] * outputs
        try:
            hit = ask(bounded, ids, output).hit_len
        except PoolExhausted:
            bounded.check_integrity()
            continue
        roomy = ask(free, ids, output).hit_len
        if groups == ["full"]:
            assert hit <= roomy


def test_eviction_is_least_recently_used() -> None:
    small = law(page_size=16, max_total_tokens=1024)
    first, second, third = X[:320], X[1000:1320], X[2000:2480]
    assert hits(small, first, second, first, third) == [0, 0, 304, 0]
    gone = ask(small, second)
    assert (gone.hit_len, gone.ledger.tokens(Cause.EVICTED)) == (0, 304)


def test_namespaces_have_trees_of_their_own() -> None:
    salted = law(groups=GDN, page_size=16)
    ask(salted, X[:500], namespace="a")
    other = ask(salted, X[:500], namespace="b")
    assert (other.hit_len, other.ledger.tokens(Cause.NAMESPACE)) == (0, 500)
    assert ask(salted, X[:500], namespace="a").hit_len == 448


def test_a_request_that_never_fits_is_refused_without_a_trace() -> None:
    small = law(page_size=16, max_total_tokens=512)
    ask(small, X[:100])
    with pytest.raises(PoolExhausted, match="max_total_tokens = 512"):
        small.admit(TokenRequest(request_id="big", ids=tuple(X[:600])))
    small.check_integrity()
    assert ask(small, X[:100]).hit_len == 96


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"groups": ["full", "swa:64", "gdn"]}, LawDoesNotCover, "no law for layer groups full, swa:64, gdn"),
        ({"groups": ["gdn"]}, LawDoesNotCover, "no law for layer groups gdn"),
        ({"groups": ["full:16", "gdn:32"]}, LawDoesNotCover, "one page size"),
        ({"page_size": 16, "chunked_prefill_size": 8}, LawDoesNotCover, "at least a page"),
        ({"groups": GDN, "page_size": 16, "chunked_prefill_size": 250}, LawDoesNotCover, "whole pages"),
        ({"groups": GDN, "page_size": 16, "mamba_radix_cache_strategy": "no_buffer"}, LawDoesNotCover, "page_size = 1"),
        ({"groups": GDN, "mamba_radix_cache_strategy": "extra_buffer_lazy"}, LawDoesNotCover, "no_buffer or"),
        ({"speculative_algorithm": "MEDUSA"}, LawDoesNotCover, "speculative_algorithm = 'MEDUSA'"),
        ({"page_sise": 16}, UsageError, "no option 'page_sise'"),
    ],
)
def test_refusals(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        law(**options)


def test_two_running_requests_of_a_hybrid() -> None:
    """As a cache manager: block tables share the hit, states do not, and everything comes back."""
    for groups in (GDN, ["full", "swa:32"]):
        manager = make_law("sglang@0.5.23", {"groups": groups, "page_size": 16}, pool_tokens=1600)
        assert isinstance(manager, SglangLaw)
        ask(manager, X[:300])
        leases = [manager.admit(TokenRequest(request_id=name, ids=tuple(X[:300]))) for name in "ab"]
        hit = leases[0].expectation.hit_len
        assert hit in (256, 288)
        one, two = (lease.held for lease in leases)
        assert isinstance(one, Held)
        assert isinstance(two, Held)
        assert np.array_equal(*(manager.slots(lease, 0, 0, hit) for lease in leases))
        assert not set(one.pages) & set(two.pages)
        if groups is GDN:
            assert len({one.state, two.state, one.track_slot, two.track_slot} - {None}) == 4
        for lease in leases:
            manager.computed(lease, 300)
            manager.release(lease)
        manager.check_integrity()
        manager.reset()
        manager.check_integrity()


# Borders of admission, and drafts


@pytest.mark.parametrize(("page", "output", "least"), [(1, 10, 112), (1, 4096, 4198), (1, 4097, 4199), (16, 10, 128)])
def test_the_least_pool_that_takes_a_prompt_of_96(page: int, output: int, least: int) -> None:
    """SGLang takes what leaves six tokens, and what fits with the output, of which 4,096 at most, and a page."""
    request = TokenRequest(request_id="r", ids=tuple(range(96)), max_tokens=output)
    for pool, fits in ((least, True), (least - page, False)):
        law = make_law("sglang@0.5.23", {"page_size": page, "max_total_tokens": pool})
        if fits:
            law.admit(request)
        else:
            with pytest.raises(PoolExhausted, match="more than"):
                law.admit(request)


def test_of_a_long_output_4096_tokens_are_reserved() -> None:
    law = make_law("sglang@0.5.23", {"page_size": 1, "max_total_tokens": 10_000})
    running = law.admit(TokenRequest(request_id="a", ids=tuple(range(5700)), max_tokens=1))
    law.computed(running, law.chunk_end(running))
    for prompt, fits in ((202, True), (203, False)):
        request = TokenRequest(request_id="b", ids=tuple(range(9000, 9000 + prompt)), max_tokens=9000)
        if fits:
            law.release(law.admit(request))
        else:
            with pytest.raises(PoolExhausted, match="needs more than 4300 tokens, the pool has 4300"):
                law.admit(request)


def test_a_chunk_of_minus_one_is_the_whole_prompt() -> None:
    for value in (-1, None):
        law = make_law("sglang@0.5.23", {"chunked_prefill_size": value})
        assert law.chunk_end(law.admit(TokenRequest(request_id="r", ids=tuple(range(9000))))) == 9000
    with pytest.raises(LawDoesNotCover, match="chunked_prefill_size = 0"):
        make_law("sglang@0.5.23", {"chunked_prefill_size": 0})


def test_tokens_accepted_in_one_step_are_published_in_order() -> None:
    law, prompt = make_law("sglang@0.5.23", {"page_size": 1}), tuple(range(10))
    lease = law.admit(TokenRequest(request_id="r", ids=prompt, max_tokens=8))
    law.computed(lease, law.chunk_end(lease))
    law.append(lease, 77)
    law.accepted(lease, (88, 99, 55))
    assert (lease.length, lease.computed_len) == (14, 13)
    law.release(lease)
    law.check_integrity()
    again = TokenRequest(request_id="s", ids=(*prompt, 77, 88, 99, 55, 1))
    assert law.send(again).hit_len == 13


@pytest.mark.parametrize(("most", "hits"), [(200, [0, 50, 50]), (201, [0, 0, 50])])
def test_a_prompt_that_fills_the_rest_of_a_step_waits_for_the_next(most: int, hits: list[int]) -> None:
    """Without chunks the second prompt of 100 joins the first only where more than 100 tokens are left."""
    prompts = [[*X[:50], *X[1000 * n : 1000 * n + 50]] for n in (1, 2, 3)]
    requests = [TokenRequest(request_id=str(n), ids=tuple(ids)) for n, ids in enumerate(prompts)]
    assert [each.hit_len for each in send_together(law(), requests, max_prefill_tokens=most)] == hits


def test_a_window_is_usable_from_where_all_of_it_is_live() -> None:
    """A boundary with fewer live tokens before it than the window is no hit, one token further it is."""
    found = []
    for length in range(497, 504):
        cache = law(groups=SWA)
        ask(cache, X[:500], output=(5, 6, 7))
        found.append(ask(cache, [*X[:500], 5, 6, 7][:length]).hit_len)
    assert found == [0, 0, 0, 499, 500, 501, 502]


@pytest.mark.parametrize(("length", "needed"), [(480, None), (490, 512), (600, 624)])
def test_a_step_and_its_window_fit_the_window_pool(length: int, needed: int | None) -> None:
    """Whole pages beyond a window, a window and a page, of a pool of 0.8 * 640; without chunks nothing is cut."""
    cache = law(groups=SWA, page_size=16, max_total_tokens=640)
    lease = cache.admit(TokenRequest(request_id="r", ids=tuple(X[:length])))
    if needed is None:
        assert cache.chunk_end(lease) == length
    else:
        with pytest.raises(PoolExhausted, match=f"needs {needed} sliding-window tokens, 512 of 512 are left"):
            cache.chunk_end(lease)
