"""Case files: what they may say, how errors name file, line and key, and IDs in a smaller vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cases.fitting import DoesNotFit, fit
from harness.cases.format import UNSTATED_OUTPUT, Case
from harness.cases.reading import find_cases, read_cases, shipped_sets, write_cases
from harness.cases.tokens import Tokens, concatenated
from reference_engine.laws.parts.history import common_prefix
from vocabulary.errors import UsageError
from vocabulary.groups import parse_groups

LINE = {
    "id": "a",
    "source": "a test",
    "engine": "vllm@0.32",
    "groups": ["full:16"],
    "options": {},
    "requests": [{"prompt": [[0, 40]]}, {"prompt": [1, 2, 3], "output": [7], "hit_len": 0}],
}
ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair))), max_size=6)


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@given(ranges, st.integers(0, 60), st.integers(0, 60))
def test_tokens_are_the_ids_they_stand_for(pairs: list[tuple[int, int]], start: int, stop: int) -> None:
    ids = [token_id for low, high in pairs for token_id in range(low, high)]
    tokens = Tokens.joined(pairs)
    assert list(tokens.ids) == ids
    assert len(tokens) == len(ids)
    assert Tokens.of(ids) == tokens == Tokens.parse(tokens.to_json())
    assert list(tokens.part(start, stop).ids) == ids[start:stop]
    assert list(tokens.without(start, max(start, stop)).ids) == [i for i in ids if not start <= i < stop]
    assert list(concatenated([tokens, tokens.cut(3)]).ids) == ids + ids[:3]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hitlen": 3}, "unknown key 'hitlen'"),
        ({"requests": [{"prompt": [1], "hitlen": 3}]}, "unknown key 'requests.0.hitlen'; did you mean 'hit_len'?"),
        ({"requests": [{"prompt": []}]}, "at least one token"),
        ({"requests": [{"prompt": [[3, 3]]}]}, "a range is not empty"),
        ({"requests": [{"prompt": [1, [2, 4]]}]}, "cannot be mixed"),
        ({"requests": [{"prompt": [True]}]}, "cannot be mixed"),
        ({"requests": [{"prompt": [-1]}]}, "IDs run from 0"),
        ({"requests": [{"prompt": [[0, 2**31]]}]}, "IDs run from 0"),
        ({"requests": [{"prompt": [[0, 2**22]]}]}, "more than"),
        ({"requests": [{"prompt": [1], "hit_len": -1}]}, "requests.0.hit_len"),
        ({"requests": [{"prompt": [1], "fork_of": 0}]}, "comes later"),
        ({"requests": []}, "requests"),
        ({"groups": ["ful:16"]}, "layer group 'ful:16'"),
        ({"engine": None}, "engine"),
    ],
)
def test_a_wrong_line_is_named_with_file_line_and_key(tmp_path: Path, change: dict[str, object], says: str) -> None:
    path = written(tmp_path, LINE, "", {**LINE, "id": "b", **change})
    with pytest.raises(UsageError) as error:
        read_cases(path)
    assert f"{path}:3" in str(error.value)
    assert says in str(error.value)


@pytest.mark.parametrize("line", ["{", "[]", "7", "nul", "[" * 100_000])
def test_what_is_no_object_on_a_line_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=r"cases\.jsonl:1: "):
        read_cases(written(tmp_path, line))


def test_ids_are_unique_and_files_not_empty(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="that of line 1"):
        read_cases(written(tmp_path, LINE, LINE))
    with pytest.raises(UsageError, match="no case in it"):
        read_cases(written(tmp_path, "", " "))
    with pytest.raises(UsageError, match="did you mean 'reports'"):
        find_cases(["reprots"])


def test_a_case_survives_being_written(tmp_path: Path) -> None:
    case = read_cases(written(tmp_path, LINE))[0].case
    write_cases(tmp_path / "again.jsonl", [case])
    again = read_cases(tmp_path / "again.jsonl")[0].case
    assert again == case
    assert again.requests[0].output_ids == (UNSTATED_OUTPUT,)
    assert again.token_request(1).ids == (1, 2, 3)


def test_every_shipped_case_reads_and_says_what_it_expects() -> None:
    sets = shipped_sets()
    assert set(sets) == {"published", "reports", "exhibits"}
    for name in sets:
        for placed in find_cases([name]):
            assert placed.case.source
            assert any(request.stated for request in placed.case.requests), placed.where
            parse_groups(placed.case.groups)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=8))
def test_a_smaller_vocabulary_keeps_every_common_prefix(pieces: list[tuple[int, int, int]]) -> None:
    prompts = [[[0, cut], [1000 * tail, 1000 * tail + more]] if cut else [[1000 * tail, 1000 * tail + more]]
               for cut, tail, more in pieces]  # fmt: skip
    case = Case.model_validate({**LINE, "requests": [{"prompt": prompt} for prompt in prompts]})
    fitted = fit(case, 512, frozenset({1, 2}))
    assert fitted.prompts is not None
    before = [np.asarray(request.prompt.ids, np.int32) for request in case.requests]
    after = [np.asarray(ids, np.int32) for ids in fitted.prompts]
    assert all(ids.min() >= 0 and ids.max() < 512 and not set(ids.tolist()) & {1, 2} for ids in after)
    for a, x in zip(before, after, strict=True):
        for b, y in zip(before, after, strict=True):
            assert common_prefix(a, b) == common_prefix(x, y)


def test_a_vocabulary_too_small_is_said() -> None:
    branches = [{"prompt": [[0, 5], [100 + 10 * i, 101 + 10 * i]]} for i in range(20)]
    with pytest.raises(DoesNotFit, match="lengthen a common prefix"):
        fit(Case.model_validate({**LINE, "requests": branches}), 8)
