"""Families are pure functions: equal seeds, equal prompts; and prompts share exactly what their pictures say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.laws.parts.history import common_prefix
from vocabulary.engine import TokenRequest
from vocabulary.errors import UsageError
from workloads.lengths import NOMINAL, Scale
from workloads.registry import FAMILIES
from workloads.sequence import Ids, Run, Send, batches, prompt_lengths
from workloads.source import TokenSource

VOCAB = 2048
NEEDS = {"questions", "trace"}
"""Families that read a file."""
OURS = sorted(set(FAMILIES) - NEEDS)
PARAMETERS: dict[str, dict[str, Any]] = {"repeat": {"blocks": ["engine"]}}
"""Of families whose defaults send nothing."""
scales = st.builds(
    Scale, granule=st.sampled_from([1, 16, 64, 100]), window=st.integers(64, 256), pool=st.integers(3000, 6000)
)


def sends_of(family: str, seed: int = 0, scale: Scale = NOMINAL, **parameters: Any) -> tuple[Send, ...]:
    kind = FAMILIES[family]
    source = TokenSource(seed, VOCAB, reserved=frozenset({0, 1}), granule=scale.granule)
    return kind.sends(kind.parameters.model_validate(PARAMETERS.get(family, {}) | parameters).at(scale), source)


def requests_of(sends: tuple[Send, ...], answer: int = 7) -> list[TokenRequest]:
    """The requests, with made-up answers of the asked length; equal prompts get equal answers."""
    outputs: list[Ids] = []
    requests = []
    for number, send in enumerate(sends):
        requests.append(send.request(str(number), outputs))
        outputs.append(tuple((sum(requests[-1].ids) * answer + i) % VOCAB for i in range(send.max_tokens)))
    return requests


def shared(one: TokenRequest, other: TokenRequest) -> int:
    return common_prefix(one.array, other.array)


@pytest.mark.parametrize("family", OURS)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), scale=scales, style=st.sampled_from(["random", "runs"]))
def test_a_family_is_a_function_of_seed_and_parameters(family: str, seed: int, scale: Scale, style: str) -> None:
    sends = sends_of(family, seed, scale, ids=style)
    again = sends_of(family, seed, scale, ids=style)
    assert requests_of(sends) == requests_of(again)
    assert [request.prompt_len for request in requests_of(sends)] == prompt_lengths(sends)
    assert all(request.ids and set(request.ids) <= set(range(2, VOCAB)) | {0, 1} for request in requests_of(sends))
    assert not sends[0].with_previous


@pytest.mark.parametrize("family", OURS)
def test_prompts_avoid_the_ids_that_mean_something(family: str) -> None:
    fixed = [part for send in sends_of(family) for part in send.parts if isinstance(part, (tuple, Run))]
    assert fixed and all(not {0, 1} & set(part) for part in fixed)


@pytest.mark.parametrize("family", OURS)
def test_a_picture_says_what_is_sent_and_what_it_separates(family: str) -> None:
    picture = FAMILIES[family].picture
    assert "[ " in picture and "\n    " in picture
    assert "Separates:" in picture or family == "pairs"


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), style=st.sampled_from(["random", "runs"]))
def test_siblings_share_exactly_their_prefix(seed: int, style: str) -> None:
    requests = requests_of(sends_of("siblings", seed, shared="3g+5", suffix=9, count=4, groups=2, ids=style))
    for (i, one), (j, other) in itertools.combinations(enumerate(requests), 2):
        assert shared(one, other) == (53 if i // 4 == j // 4 else 0)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), style=st.sampled_from(["random", "runs"]))
def test_edits_share_exactly_the_head(seed: int, style: str) -> None:
    requests = requests_of(sends_of("edit", seed, head=37, cut=5, tail=40, ids=style))
    original, lengths = requests[0], [request.prompt_len for request in requests]
    assert lengths == [82, 77, 82, 87, 82, 82, 82]
    assert [shared(original, request) for request in requests] == [82, 37, 82, 37, 82, 37, 82]
    assert original.ids[:37] + original.ids[42:] == requests[1].ids
    assert requests[3].ids[42:] == original.ids[37:]
    assert requests[5].ids[42:] == original.ids[42:]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), answer=st.integers(0, 50))
def test_a_fork_keeps_the_declared_part_of_the_answer(seed: int, answer: int) -> None:
    sends = sends_of("fork", seed, prompt=30, max_tokens=20, kept=[1, 8], own=5)
    requests = requests_of(sends, answer)
    whole = (*requests[0].ids, *((sum(requests[0].ids) * answer + i) % VOCAB for i in range(20)))
    for request, kept in zip(requests[1:5], (1, 1, 8, 8), strict=True):
        assert request.ids[: 30 + kept] == whole[: 30 + kept]
        assert request.ids[30 + kept] != whole[30 + kept]


@pytest.mark.parametrize(("seams", "kept"), [(["first"], 0), (["last"], 9), (["first", "last"], 0)])
@settings(max_examples=25)
@given(answer=st.integers(0, 50))
def test_a_retokenised_answer_differs_at_its_seams_only(seams: list[str], kept: int, answer: int) -> None:
    requests = requests_of(sends_of("retokenised", first=30, max_tokens=10, question=4, seams=seams), answer)
    first, second, third = requests
    generated = tuple((sum(first.ids) * answer + i) % VOCAB for i in range(10))
    assert [request.prompt_len for request in requests] == [30, 44, 58]
    assert (second.ids[30] != generated[0]) is ("first" in seams)
    assert (second.ids[39] != generated[9]) is ("last" in seams)
    assert second.ids[31:39] == generated[1:9]
    assert second.ids[30 : 30 + kept] == generated[:kept]
    assert third.ids[:44] == second.ids


def test_a_poisoned_prompt_shares_nothing_and_holds_the_same_blocks() -> None:
    requests = requests_of(sends_of("poison", block=32, tail=17))
    original, swapped, behind, shifted = requests[:4]
    assert [shared(original, request) for request in (swapped, behind, shifted)] == [0, 0, 0]
    assert original.ids[1:33] == swapped.ids[33:65] == shifted.ids[:32]
    assert behind.ids[1:] == original.ids[1:]


def test_tools_return_to_a_trunk_that_branches_left() -> None:
    sends = sends_of("tools", trunk=40, call=10, note=5, branches=2, depth=2)
    assert [send.label for send in sends] == ["trunk", "1.1", "1.2", "back 1", "2.1", "2.2", "back 2", "again"]
    requests = requests_of(sends)
    assert [shared(one, other) for one, other in itertools.pairwise(requests)] == [40, 50, 40, 45, 55, 45, 40]


def test_a_burst_is_sent_at_one_moment() -> None:
    sends = sends_of("burst", count=3, serial=2)
    assert [len(batch) for batch in batches(sends)] == [3, 1, 1, 1, 1]
    assert [send.label for send in sends if send.reset_before] == ["alone 1"]


def test_churn_fills_shares_of_the_pool() -> None:
    sends = sends_of("churn", scale=Scale(granule=16, pool=640), length="4g")
    assert len(sends) == 2 * (5 + 10 + 20)
    assert [send.label for send in sends if send.reset_before] == ["1 P: 1", "2 P: 1"]


def test_windows_are_probed_at_their_edge() -> None:
    sends = sends_of("window", scale=Scale(granule=16, window=100))
    assert [send.label for send in sends[::4]] == [f"S={n} sibling 1" for n in (99, 100, 101, 200)]


@pytest.mark.parametrize(
    ("text", "tokens"), [("3g+1", 49), ("g", 16), ("W-1", 99), ("0.5P", 500), ("2W + g - 3", 213), ("17", 17)]
)
def test_lengths_relative_to_an_engine(text: str, tokens: int) -> None:
    assert Scale(granule=16, window=100, pool=1000).tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "g3", "3x", "3g+", "+", "g g", "-", "1e3"])
def test_a_text_that_is_no_length(text: str) -> None:
    with pytest.raises(ValueError, match="write a number or a sum"):
        NOMINAL.tokens(text)


@pytest.mark.parametrize(
    ("family", "parameters", "words"),
    [
        ("window", {}, "no sliding window"),
        ("churn", {}, "pool is unbounded or not known"),
        ("trim", {"long": "4g", "short": ["g+30"]}, r"short = \[38\] must not exceed long = 32"),
        ("repeat", {"lengths": ["g-8"]}, "greater than or equal to 1"),
    ],
)
def test_parameters_that_mean_nothing_on_an_engine(family: str, parameters: dict[str, Any], words: str) -> None:
    checked = FAMILIES[family].parameters.model_validate(
        parameters
    )  # fits `NOMINAL`, that is, before an engine is known
    with pytest.raises(UsageError, match=words):
        checked.at(Scale(granule=8))


def test_a_long_prompt_in_runs_costs_nothing_before_it_is_sent() -> None:
    sends = sends_of("siblings", shared=1_000_000, suffix=9, count=3, ids="runs")
    assert all(isinstance(part, Run) for send in sends for part in send.parts)
    first, second = (send.prompt(()) for send in sends[:2])
    assert len(first) == 1_000_009
    assert first[:1_000_000] == second[:1_000_000] and first[1_000_000] != second[1_000_000]


@given(size=st.integers(0, 50), start=st.integers(0, 60), data=st.data())
def test_a_run_behaves_as_the_ids_it_stands_for(size: int, start: int, data: st.DataObject) -> None:
    source = TokenSource(0, 32).drawing(True)
    run = source.fresh(3)
    assert isinstance(run, Run)
    longer = Run(run.table, start, size)
    low, high = sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))
    assert longer[low:high].ids() == longer.ids()[low:high] == tuple(longer)[low:high]


def test_a_vocabulary_that_is_too_small_is_said() -> None:
    with pytest.raises(UsageError, match="unrelated prompts, more than the model has IDs"):
        sends_of("churn", scale=Scale(granule=1, pool=VOCAB * 4), length=1)
    with pytest.raises(UsageError, match="IDs are too few"):
        TokenSource(0, 2).differing(3, 0, 1)
