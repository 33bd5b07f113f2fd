"""The Mooncake reader, and what every reader has in common: chain keys, malformed rows, token form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabulary.errors import UsageError
from workloads.traces.chain import SplitCount, chain_keys
from workloads.traces.mooncake import Mooncake
from workloads.traces.token_form import TokenForm


def row(ids: list[int], length: int, time: int = 0) -> str:
    return json.dumps({"timestamp": time, "input_length": length, "output_length": 5, "hash_ids": ids})


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def common(first: np.ndarray, second: np.ndarray) -> int:
    shorter = min(len(first), len(second))
    differs = first[:shorter] != second[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def test_rows_become_requests(tmp_path: Path) -> None:
    reader = Mooncake(written(tmp_path / "t.jsonl", row([0, 1], 600), row([0, 2, 3], 1030, 27), row([0, 1], 600)))
    first, second, third = reader
    assert [q.line for q in (first, second, third)] == [1, 2, 3]
    assert second.arrival_ns == 27_000_000
    assert (second.input_len, second.output_len, second.block_len) == (1030, 5, 512)
    assert first.blocks[0] == second.blocks[0]
    assert first.blocks[1] != second.blocks[1]
    assert (first.blocks == third.blocks).all()
    assert (reader.rows, reader.malformed, reader.split_ids) == (3, 0, 0)
    assert "cannot see below 512 tokens" in reader.blind_below


def test_compressed_and_limited(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(row([i], 100) for i in range(5)).encode()))
    assert [q.line for q in Mooncake(path, limit=3)] == [1, 2, 3]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UsageError, match="ends in the middle"):
        list(Mooncake(path))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (row([1], 1025), "are 3 IDs"),
        (row([1, 2], 512), "are 1 IDs"),
        (row([1], 0), "at least 1"),
        (row([True], 5), "no list of whole numbers"),  # type: ignore[list-item]
        (row([2**64], 5), "beyond 64 bits"),
        (row([1], 5, -1), "not a time"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5, "hash_ids": [1]}', "not a time"),
        ('{"timestamp": 0, "input_length": 5, "hash_ids": [1]}', "'output_length' is None"),
    ],
)
def test_malformed_rows_are_errors_unless_skipped(tmp_path: Path, line: str, why: str) -> None:
    path = written(tmp_path / "t.jsonl", row([7], 10), line, row([7], 10))
    with pytest.raises(UsageError, match=rf"t\.jsonl:2: .*{why}"):
        list(Mooncake(path))
    reader = Mooncake(path, skip_malformed=True)
    assert [q.line for q in reader] == [1, 3]
    assert reader.malformed == 1
    assert [bad.line for bad in reader.malformed_rows] == [2]
    assert why in reader.malformed_rows[0].why
    list(reader)
    assert reader.malformed == 1, "counts are of the last loop"


lists = st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=12)


@settings(max_examples=50)
@given(lists)
def test_equal_key_means_equal_prefix(rows: list[list[int]]) -> None:
    flat = np.array([each for one in rows for each in one], np.int64)
    lengths = np.array([len(one) for one in rows], np.int64)
    keys = np.split(chain_keys(flat, lengths), np.cumsum(lengths)[:-1])
    seen: dict[int, tuple[int, ...]] = {}
    known: dict[tuple[int, ...], int] = {}
    for one, made in zip(rows, keys, strict=True):
        for end, key in enumerate(made.tolist(), start=1):
            prefix = tuple(one[:end])
            assert seen.setdefault(key, prefix) == prefix
            assert known.setdefault(prefix, key) == key
    count = SplitCount()
    count.add(flat, np.concatenate(keys))
    prefixes: dict[int, set[tuple[int, ...]]] = {}
    for prefix in known:
        prefixes.setdefault(prefix[-1], set()).add(prefix)
    assert count.total() == sum(len(each) > 1 for each in prefixes.values())


@settings(max_examples=40)
@given(lists, st.integers(1, 4), st.integers(0, 3), st.sampled_from([1, 2]))
def test_token_form_shares_exactly_what_the_blocks_share(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], block: int, partial: int, divide: int
) -> None:
    block *= divide
    lines = [row(ids, len(ids) * block - partial % block) for ids in rows if ids]
    path = written(tmp_path_factory.mktemp("t") / "t.jsonl", *lines)
    form, again = TokenForm(13, 5, reserved=frozenset({3})), TokenForm(13, 5, reserved=frozenset({3}))
    requests = [request.scaled(divide) for request in Mooncake(path, block_len=block)]
    prompts = [form.ids(request) for request in requests]
    for request, prompt in zip(requests, prompts, strict=True):
        assert len(prompt) == request.input_len
        assert not (prompt == 3).any() and prompt.min() >= 0 and prompt.max() < 13
        assert (again.ids(request) == prompt).all()
    for i, one in enumerate(requests):
        for j in range(i):
            other = requests[j]
            blocks = common(one.blocks, other.blocks)
            declared = min(blocks * one.block_len, one.input_len, other.input_len)
            assert common(prompts[i], prompts[j]) == declared


def test_a_vocabulary_too_small_is_an_error(tmp_path: Path) -> None:
    reader = Mooncake(written(tmp_path / "t.jsonl", *(row([i], 5) for i in range(4))))
    form = TokenForm(3)
    with pytest.raises(UsageError, match="line 4: more than 3 different blocks"):
        [form.ids(request) for request in reader]


def test_scaling_keeps_whole_blocks(tmp_path: Path) -> None:
    (request,) = Mooncake(written(tmp_path / "t.jsonl", row([1, 2, 3], 1025)))
    small = request.scaled(32)
    assert (small.block_len, small.input_len, small.output_len) == (16, 33, 1)
    with pytest.raises(UsageError, match="divisor"):
        request.scaled(3)
