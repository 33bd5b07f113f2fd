"""The full-attention laws: the published numbers, their closed form, and the books of bounded pools."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.laws.base import Expectation, Law, PoolExhausted
from reference_engine.laws.parts.history import History
from reference_engine.laws.registry import LAWS, make_law
from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import LawDoesNotCover, UsageError
from vocabulary.ledger import Cause
from workloads.families.changed import Changed, changed
from workloads.source import TokenSource

BLOCK_LAWS = [("vllm@0.32", "block_size"), ("sglang@0.5.23", "page_size")]
PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 6), st.sampled_from([None, "salt"])),
    min_size=1,
    max_size=12,
)


def ask(law: Law, ids: Sequence[int], *, output: Sequence[int] = (7,), **fields: Any) -> Expectation:
    request = TokenRequest(request_id="r", ids=tuple(ids), max_tokens=len(output), **fields)
    expectation = law.send(request)
    law.finish(request, output)
    law.check_integrity()
    return expectation


def lcp(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.mark.parametrize(
    ("law_id", "options", "hits"),
    [
        ("vllm@0.32", {"block_size": 16}, [0, 1024, 16, 1024]),
        ("vllm@0.32", {"block_size": 32}, [0, 1024, 0, 1024]),
        ("vllm@0.32", {"block_size": 64}, [0, 1024, 0, 1024]),
        ("vllm@0.32", {"block_size": 128}, [0, 1024, 0, 1024]),
        ("sglang@0.5.23", {"page_size": 1}, [0, 1026, 17, 1037]),
        ("sglang@0.5.23", {"page_size": 16}, [0, 1024, 16, 1024]),
        ("sglang@0.5.23", {"page_size": 64}, [0, 1024, 0, 1024]),
    ],
)
def test_founding_comparison(law_id: str, options: dict[str, int], hits: list[int]) -> None:
    law = make_law(law_id, options)
    sends = changed(Changed(), TokenSource(0, 2048))
    assert [ask(law, send.prompt([])).hit_len for send in sends[:4]] == hits


@pytest.mark.parametrize(("law_id", "option"), BLOCK_LAWS)
@pytest.mark.parametrize(
    ("granule", "length"), [(g, k * g + d) for g in (1, 16, 64) for k in (1, 2) for d in (-1, 0, 1, 2) if k * g + d]
)
def test_repeat_at_block_edges(law_id: str, option: str, granule: int, length: int) -> None:
    law = make_law(law_id, {option: granule})
    hits = [ask(law, range(length)).hit_len for _ in range(3)]
    assert hits == [0] + [(length - 1) // granule * granule] * 2


@pytest.mark.parametrize(("law_id", "option"), BLOCK_LAWS)
@given(prompts=PROMPTS, granule=st.integers(1, 5))
def test_unbounded_hit_is_the_floor_of_the_longest_common_prefix(
    law_id: str, option: str, prompts: list[tuple[list[int], int, str | None]], granule: int
) -> None:
    law = make_law(law_id, {option: granule})
    computed: list[tuple[str | None, list[int]]] = []
    for ids, outputs, salt in prompts:
        output = [(sum(ids) + i) % 3 for i in range(outputs)]
        expectation = ask(law, ids, output=output, namespace=salt)
        longest = max((lcp(ids, seen) for name, seen in computed if name == salt), default=0)
        assert expectation.hit_len == min(longest, len(ids) - 1) // granule * granule
        assert expectation.ledger.reused == expectation.hit_len
        assert expectation.ledger.tokens(Cause.EVICTED) == expectation.ledger.tokens(Cause.UNEXPLAINED) == 0
        computed.append((salt, ids + output[:-1]))


@settings(max_examples=150)
@pytest.mark.parametrize(("law_id", "option"), BLOCK_LAWS)
@given(prompts=PROMPTS, granule=st.integers(1, 4), pages=st.integers(1, 16))
def test_bounded_pool_keeps_its_books_and_explains_what_it_dropped(
    law_id: str, option: str, prompts: list[tuple[list[int], int, str | None]], granule: int, pages: int
) -> None:
    law = make_law(law_id, {option: granule}, pool_tokens=pages * granule)
    free = make_law(law_id, {option: granule})
    for ids, outputs, salt in prompts:
        if len(ids) + outputs > pages * granule:
            request = TokenRequest(request_id="r", ids=(*ids, *[0] * (pages * granule + 1)), max_tokens=1)
            with pytest.raises(PoolExhausted):
                law.admit(request)
            law.check_integrity()
            continue
        output = [1] * outputs
        bounded, unbounded = (ask(each, ids, output=output, namespace=salt) for each in (law, free))
        assert bounded.hit_len <= unbounded.hit_len
        assert bounded.ledger.tokens(Cause.EVICTED) == unbounded.hit_len - bounded.hit_len


@pytest.mark.parametrize(("law_id", "option"), BLOCK_LAWS)
def test_two_running_requests_share_the_hit_and_only_the_hit(law_id: str, option: str) -> None:
    law = make_law(law_id, {option: 4}, pool_tokens=400)
    ids = tuple(range(30))
    ask(law, ids)
    one, two = (law.admit(TokenRequest(request_id=name, ids=ids)) for name in "ab")
    shared = one.expectation.hit_len
    assert shared == 28
    one_slots, two_slots = (law.slots(lease, 0, 0, 30) for lease in (one, two))
    assert np.array_equal(one_slots[:shared], two_slots[:shared])
    assert not set(one_slots[shared:]) & set(two_slots[shared:])
    for lease in (one, two):
        law.computed(lease, 30)
        law.release(lease)
    law.check_integrity()
    law.reset()
    assert ask(law, ids).hit_len == 0


@pytest.mark.parametrize(("law_id", "option"), BLOCK_LAWS)
def test_reasons_beside_the_granule(law_id: str, option: str) -> None:
    law = make_law(law_id, {option: 4})
    ids = list(range(21))
    ask(law, ids, namespace="a")
    assert ask(law, ids, namespace="b").ledger.by_cause() == {Cause.NAMESPACE: 21}
    hidden = ask(law, ids, namespace="a", features=frozenset({Feature.PROMPT_LOGPROBS}))
    assert hidden.ledger.by_cause() == {Cause.DISABLED: 20, Cause.LAST_TOKEN: 1}
    assert ask(law, ids, namespace="a").hit_len == 20


def test_a_block_prompt_is_cached_twice_and_both_copies_are_accounted_for() -> None:
    law = make_law("vllm@0.32", {"block_size": 4}, pool_tokens=32)
    for _ in range(6):
        assert ask(law, range(8)).hit_len in (0, 4)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=15))
def test_history_agrees_with_a_plain_search(sequences: list[list[int]]) -> None:
    history = History()
    for number, ids in enumerate(sequences):
        assert history.lcp(np.asarray(ids, np.int32)) == max((lcp(ids, s) for s in sequences[:number]), default=0)
        history.add(np.asarray(ids, np.int32))


def test_laws_refuse_what_they_do_not_cover() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'vllm@0\.32'"):
        make_law("vllm@0.322", {})
    with pytest.raises(UsageError, match="no option 'page_size'"):
        make_law("vllm@0.32", {"page_size": 16})
    with pytest.raises(LawDoesNotCover, match="block_size"):
        make_law("vllm@0.32", {"block_size": 0})
    assert all(law_id == entry.id for law_id, entry in LAWS.items())
