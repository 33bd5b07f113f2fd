"""llama.cpp's slots: the measured tables, the choice of a slot, and the books."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.laws.base import Expectation, Law, PoolExhausted
from reference_engine.laws.llama_cpp.in_process import LlamaCppPython
from reference_engine.laws.llama_cpp.server import Held, LlamaCppServer, ServerOptions
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest
from vocabulary.ledger import Cause
from workloads.families.changed import Changed, changed
from workloads.source import TokenSource

A, B, B2 = (send.prompt([]) for send in changed(Changed(), TokenSource(0, 2048))[:3])


def request(ids: Sequence[int], outputs: int = 1, name: str = "r") -> TokenRequest:
    return TokenRequest(request_id=name, ids=tuple(ids), max_tokens=outputs)


def ask(law: Law, ids: Sequence[int], output: Sequence[int] = (7,)) -> Expectation:
    asked = request(ids, len(output))
    expectation = law.send(asked)
    law.finish(asked, output)
    law.check_integrity()
    return expectation


def hits(law: Law, *prompts: Sequence[int]) -> list[int]:
    return [ask(law, prompt).hit_len for prompt in prompts]


def fresh(source: int, count: int) -> list[int]:
    """IDs that no other source gives."""
    return list(range(source * 10_000, source * 10_000 + count))


def test_one_slot_founding_comparison() -> None:
    law = make_law("llama.cpp", {})
    assert hits(law, A, B, B2, A, A) == [0, 1026, 17, 17, 1037]
    law.reset()
    assert hits(law, A, A) == [0, 1037]


def test_in_process_founding_comparison() -> None:
    law = make_law("llama-cpp-python@0.3", {})
    assert hits(law, A, A, B, B2) == [0, 1038, 1026, 17]
    thirty = fresh(1, 30)
    assert ask(law, A, thirty).hit_len == 17
    assert hits(law, [*A, *thirty, *fresh(2, 20)]) == [1067]  # the last generated token has no KV
    assert ask(law, A, thirty).hit_len == 1037
    assert hits(law, A) == [1037]  # the context is longer than the prompt: its logits are gone
    assert hits(law, A[:600] + A[700:]) == [600]


def test_four_slots_send_a_changed_prompt_to_an_empty_one() -> None:
    law = make_law("llama.cpp", {"n_parallel": 4})
    assert hits(law, A, B, B2, A, B2) == [0, 1026, 0, 1026, 1037]


@pytest.mark.parametrize(
    ("options", "later_turns"),
    [
        ({"n_parallel": 1}, [0, 0]),
        ({"n_parallel": 4}, [460, 520]),
        ({"n_parallel": 4, "slot_prompt_similarity": 0.0}, [0, 0]),
        ({"n_parallel": 4, "slot_prompt_similarity": 0.9}, [0, 0]),
    ],
)
def test_three_conversations(options: dict[str, Any], later_turns: list[int]) -> None:
    law = make_law("llama.cpp", options)
    talks = [fresh(source, 580) for source in range(3)]
    for length, hit in zip((460, 520, 580), [0, *later_turns], strict=True):
        assert hits(law, *(talk[:length] for talk in talks)) == [hit] * 3


def test_shared_prefix_stays_in_one_slot_unless_requests_overlap() -> None:
    law = make_law("llama.cpp", {"n_parallel": 4})
    system = fresh(0, 600)
    assert hits(law, *([*system, *fresh(user, 50)] for user in range(1, 5))) == [0, 600, 600, 600]
    together = [request([*system, *fresh(user, 50)], name=str(user)) for user in range(5, 9)]
    expected = [law.send(each) for each in together]
    assert [e.hit_len for e in expected] == [600, 0, 0, 0]
    assert expected[1].ledger.by_cause() == {Cause.SLOT: 600, Cause.NOVEL: 50}
    for each in together:
        law.finish(each, [7])
    law.check_integrity()


def test_threshold_is_strict() -> None:
    """3 of 12 tokens are exactly a quarter."""
    for prompt_len, hit in ((12, 0), (11, 3)):
        law = LlamaCppServer(ServerOptions(n_parallel=2, slot_prompt_similarity=0.25))
        ask(law, fresh(0, 20))
        assert hits(law, [*fresh(0, 3), *fresh(1, prompt_len - 3)]) == [hit]


def chosen(law: LlamaCppServer, ids: Sequence[int]) -> int:
    asked = request(ids)
    lease = law.admit(asked)
    law.computed(lease, len(asked.ids))
    law.release(lease)
    assert isinstance(lease.held, Held)
    return lease.held.slot.number


def test_never_used_slots_come_first_highest_first_and_a_reset_keeps_the_order() -> None:
    law = LlamaCppServer(ServerOptions(n_parallel=3))
    assert [chosen(law, fresh(source, 9)) for source in range(4)] == [2, 1, 0, 2]
    law.reset()
    assert [chosen(law, fresh(source, 9)) for source in range(3)] == [1, 0, 2]


def test_of_equal_slots_the_lowest_wins() -> None:
    law = LlamaCppServer(ServerOptions(n_parallel=2))
    first = [request(fresh(0, 9), name=name) for name in "ab"]
    for each in first:
        law.send(each)
    for each in first:
        law.finish(each, [7])
    assert chosen(law, fresh(0, 9)) == 0


def test_causes() -> None:
    law = make_law("llama.cpp", {})
    assert ask(law, A).ledger.by_cause() == {Cause.NOVEL: 1038}
    assert ask(law, A).ledger.by_cause() == {Cause.REUSED: 1037, Cause.LAST_TOKEN: 1}
    assert ask(law, B2).ledger.by_cause() == {Cause.REUSED: 17, Cause.NOVEL: 1021}
    assert ask(law, A).ledger.by_cause() == {Cause.REUSED: 17, Cause.EVICTED: 1020, Cause.LAST_TOKEN: 1}
    four = make_law("llama.cpp", {"n_parallel": 4})
    hits(four, A)
    assert ask(four, B2).ledger.by_cause() == {Cause.SLOT: 17, Cause.NOVEL: 1021}


def test_a_slot_is_one_range_of_cells() -> None:
    law = LlamaCppServer(ServerOptions(n_parallel=2, n_ctx_slot=16))
    assert law.pool_tokens == 32
    first, second = law.admit(request(fresh(0, 8), 4)), law.admit(request(fresh(0, 8), 4))
    places = sorted(list(law.slots(lease, 0, 0, 12)) for lease in (first, second))
    assert places == [list(range(12)), list(range(16, 28))]
    with pytest.raises(PoolExhausted, match="busy"):
        law.admit(request([1]))
    law.release(first)
    with pytest.raises(PoolExhausted, match="do not fit"):
        law.admit(request(fresh(1, 16)))
    law.check_integrity()


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=12))
def test_in_process_context_is_the_last_sequence(prompts: list[list[int]]) -> None:
    """Against a plain statement of the rule: one remembered sequence."""
    law, context = LlamaCppPython(), list[int]()
    for prompt in prompts:
        common = next((i for i, (a, b) in enumerate(zip(context, prompt, strict=False)) if a != b), None)
        common = min(len(context), len(prompt)) if common is None else common
        expected = len(prompt) if context == prompt else min(common, len(prompt) - 1)
        assert ask(law, prompt, (1, 0)).hit_len == expected
        context = [*prompt, 1]
