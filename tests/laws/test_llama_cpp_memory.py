"""Window cells, checkpoints and the RAM cache one by one, and every option together on random requests."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.laws.base import Ids
from reference_engine.laws.llama_cpp.checkpoints import Checkpoint, CheckpointRule, newest_usable
from reference_engine.laws.llama_cpp.chunk_shift import chunks
from reference_engine.laws.llama_cpp.memory import Snapshot, WindowCells, WindowMemory, window_cells
from reference_engine.laws.llama_cpp.ram_cache import RamCache, StateBytes
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.ledger import Cause


def ids(*values: int) -> Ids:
    return np.asarray(values, np.int32)


def zeros(count: int) -> Ids:
    return np.zeros(count, np.int32)


@pytest.mark.parametrize(
    ("window", "n_ubatch", "sequences", "most", "cells"),
    [(128, 512, 1, None, 768), (128, 64, 1, None, 256), (128, 64, 3, None, 512), (512, 512, 1, 600, 768)],
)
def test_window_cells(window: int, n_ubatch: int, sequences: int, most: int | None, cells: int) -> None:
    """As b11549 logs them ("creating SWA KV cache, size = ... cells")."""
    assert window_cells(window, n_ubatch, sequences=sequences, most=most) == cells


def test_oldest_cells_are_reused_once_the_next_token_does_not_see_them() -> None:
    memory = WindowMemory(WindowCells(256, 128, 64), 0)
    memory.decode(0, 256)
    assert (memory.first, memory.last) == (0, 255)
    memory.decode(256, 257)
    assert memory.first == 1
    memory.decode(257, 300)
    assert memory.first == 300 - 256
    memory.cut(200)
    assert (memory.first, memory.last) == (44, 199)
    copy = memory.snapshot()
    assert (copy.first, copy.last) == (44, 199)
    assert copy.cells is not None and sorted(copy.cells) == list(range(72, 200))
    memory.cut(0)
    assert (memory.first, memory.last) == (None, None)
    memory.restore(copy)
    assert (memory.first, memory.last) == (72, 199)


def test_sequences_that_share_cells_overwrite_one_another() -> None:
    cells = WindowCells(256, 64, 64)
    one, two = WindowMemory(cells, 0), WindowMemory(cells, 1)
    one.decode(0, 200)
    two.decode(0, 200)
    cells.check()
    assert one.first == 200 - 64 + 1 and one.last == 199
    assert two.last == 199


RULE = CheckpointRule(limit=3, min_step=10, n_batch=256, n_ubatch=64)


def test_steps_are_cut_before_the_end() -> None:
    bounds = [0]
    while bounds[-1] < 600:
        bounds.append(RULE.batch_end(bounds[-1], 600))
    assert bounds == [0, 256, 512, 532, 596, 600]
    assert [RULE.due(a, b, 600) for a, b in pairwise(bounds)] == [False, False, False, True, True]
    assert RULE.batch_end(596, 600) == 600 and not RULE.due(0, 3, 3)


def checkpoint(length: int, request: object, first: int | None = None) -> Checkpoint:
    return Checkpoint(zeros(length), Snapshot(length - 1 if first is None else first, length - 1), request)


def test_checkpoints_make_room() -> None:
    old, new = object(), object()
    kept = [checkpoint(length, old) for length in (20, 25, 90)]
    # 25 lies within min_step of 20, so it goes and 20 stays.
    assert [each.length for each in RULE.added(kept, checkpoint(100, new))] == [20, 90, 100]
    far = [checkpoint(length, old) for length in (20, 50, 90)]
    assert [each.length for each in RULE.added(far, checkpoint(100, new))] == [50, 90, 100]
    own = [checkpoint(length, new) for length in (20, 25, 90)]
    assert [each.length for each in RULE.added(own, checkpoint(100, new))] == [25, 90, 100]
    assert [each.length for each in RULE.added(far[:1], checkpoint(20, new))] == [20]


def test_newest_usable_checkpoint() -> None:
    states, windows = ([checkpoint(n, None) for n in (10, 20)], [checkpoint(n, None, first=n - 8) for n in (10, 20)])
    assert newest_usable(states, 20, 20) is states[1]
    assert newest_usable(states, 19, 19) is states[0]  # it ends with a token that the prompt does not have
    assert newest_usable(windows, 19, 15) is windows[1]
    assert newest_usable(windows, 18, 15) is windows[0]
    assert newest_usable(windows, 18, 2) is None


def test_ram_cache() -> None:
    cache, state = RamCache(40, None, StateBytes(per_token=10)), Snapshot(0, 2)
    assert cache.save(ids(1, 2, 3), (), (), state)
    assert not cache.save(ids(1, 2), (), (), Snapshot(0, 1))  # the stored prompt begins with it
    assert cache.save(ids(1, 2, 3, 4), (), (), Snapshot(0, 3))  # begins with the stored one, which goes
    assert [len(each.ids) for each in cache.stored] == [4]
    assert not cache.save(ids(5, 6, 7, 8, 9), (), (), Snapshot(0, 4))  # larger than the cache
    assert cache.save(ids(9), (), (), Snapshot(0, 0))  # the oldest makes room
    assert [list(each.ids) for each in cache.stored] == [[9]]


def test_ram_cache_exchanges_for_the_better_in_both_shares() -> None:
    cache = RamCache(None, 100, StateBytes(per_token=0))
    cache.save(ids(1, 2, 3, 4), (), (), Snapshot(0, 3))
    stored = cache.stored[0]
    assert cache.better(ids(), ids(1, 9)) is stored
    assert cache.better(ids(1), ids(1, 2, 9)) is None  # the slot would keep all it holds
    assert cache.better(ids(1, 8), ids(1, 2, 3, 9)) is stored
    cache.save(ids(*range(50, 150)), (), (), Snapshot(0, 99))
    cache.trim()  # without a size limit the context's tokens bound it
    assert [len(each.ids) for each in cache.stored] == [100]


def test_assumed_sizes_refuse_where_the_limit_could_bind() -> None:
    law = make_law("llama.cpp", {"cache_ram_mib": 100})
    with pytest.raises(LawDoesNotCover, match="state_bytes_per_token"):
        for source in range(4):
            asked = TokenRequest(request_id="r", ids=tuple(range(source * 1000, source * 1000 + 60)))
            law.send(asked)
            law.finish(asked, (1,))


def test_a_refused_request_leaves_its_slot_free() -> None:
    law = make_law("llama.cpp", {"n_parallel": 2, "cache_ram_mib": 100})
    refused = 0
    for source in range(6):
        asked = TokenRequest(request_id="r", ids=tuple(range(source * 1000, source * 1000 + 60)))
        try:
            law.send(asked)
        except LawDoesNotCover as error:
            assert "state_bytes_per_token" in str(error)
            refused += 1
        else:
            law.finish(asked, (1,))
        law.check_integrity()
    assert refused > 2


def test_chunks_are_found_in_order() -> None:
    held, wanted = ids(1, 2, 9, 9, 3, 4, 5, 8, 6, 7), ids(1, 2, 3, 4, 5, 6, 7, 0)
    assert chunks(held, wanted, 2, 2) == [(4, 2, 3), (8, 5, 2)]
    assert chunks(held, wanted, 2, 3) == [(4, 2, 3)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"groups": ["full:16"]}, "without a block"),
        ({"groups": ["full", "swa:128", "gdn"]}, "one window or"),
        ({"n_ctx_checkpoints": 1, "ctx_checkpoints": 2}, "one option"),
        ({"n_parallel": 2, "kv_unified": True}, "n_ctx"),
        ({"cache_ram_mib": -1}, "n_ctx"),
        ({"cache_ram_mib": -2}, "whole number"),
        ({"n_cache_reuse": -1}, "whole number"),
        ({"groups": ["full", "swa:128"], "n_ctx": 256, "n_cache_reuse": 64}, "chunks moved in window"),
    ],
)
def test_what_is_not_covered(options: dict[str, Any], why: str) -> None:
    with pytest.raises(LawDoesNotCover, match=why):
        make_law("llama.cpp", options)


GROUPS = st.sampled_from([["full"], ["full", "swa:4"], ["full", "gdn"], ["gdn"]])
OPTIONS = st.fixed_dictionaries(
    {
        "groups": GROUPS,
        "n_parallel": st.integers(1, 3),
        "n_batch": st.integers(1, 9),
        "n_ubatch": st.integers(1, 5),
        "n_ctx_slot": st.just(300),
        "cache_ram_mib": st.sampled_from([0, -1, 8192]),
        "n_cache_reuse": st.sampled_from([0, 2]),
        "n_ctx_checkpoints": st.integers(0, 3),
        "checkpoint_min_step": st.sampled_from([0, 3, 8192]),
        "kv_unified": st.booleans(),
        "swa_full": st.booleans(),
    }
)


@settings(deadline=None, max_examples=60)
@given(OPTIONS, st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=90), min_size=1, max_size=8))
def test_books_add_up(options: dict[str, Any], prompts: list[list[int]]) -> None:
    law = make_law("llama.cpp", options)
    for number, prompt in enumerate(prompts):
        request = TokenRequest(request_id=str(number), ids=tuple(prompt), max_tokens=2)
        expected = law.send(request)
        law.finish(request, (0, 1))
        law.check_integrity()
        assert 0 <= expected.hit_len == expected.position_start == expected.ledger.reused < len(prompt)
        assert expected.ledger.tokens(Cause.UNEXPLAINED) == 0
        assert expected.approximate_len <= expected.hit_len
        assert max(expected.per_group.values()) >= expected.hit_len


@pytest.mark.parametrize(("options", "tokens"), [({}, 512), ({"n_parallel": 3}, 1536), ({"kv_unified": True}, 512)])
def test_slots_share_one_range_of_cells_or_have_one_each(options: dict[str, Any], tokens: int) -> None:
    assert make_law("llama.cpp", {"n_ctx_slot": 512} | options).pool_tokens == tokens


@pytest.mark.parametrize(("law_id", "step"), [("llama.cpp", 2048), ("llama-cpp-python@0.3", 512)])
def test_a_step_is_n_batch_long_and_binds_where_states_are_kept(law_id: str, step: int) -> None:
    request = TokenRequest(request_id="r", ids=tuple(range(5000)))
    for groups, binds in ((["full"], False), (["full", "gdn"], True)):
        law = make_law(law_id, {"groups": groups})
        assert (law.chunk_end(law.admit(request)), law.chunks_bind) == (step, binds)
        law = make_law(law_id, {"groups": groups, "n_batch": 100})
        assert law.chunk_end(law.admit(request)) == 100


def test_an_engine_needs_room_for_the_context_and_one_state_where_nothing_is_copied() -> None:
    def rooms(law_id: str, **options: Any) -> list[int | None]:
        return [room.slots for room in make_law(law_id, options).rooms]

    assert rooms("llama.cpp", n_ctx_slot=512) == [512]
    assert rooms("llama.cpp", n_ctx_slot=512, n_parallel=3) == [1536]
    assert rooms("llama-cpp-python@0.3", n_ctx=512, groups=["full", "gdn"]) == [512, 1]


def test_a_state_that_a_step_has_overwritten_and_not_reached_is_lost() -> None:
    law, prompt = make_law("llama-cpp-python@0.3", {"groups": ["full", "gdn"], "n_ctx": 512}), tuple(range(50))
    for length, hit in ((50, 0), (51, 0)):
        request = TokenRequest(request_id="a", ids=(*prompt, 5)[:length])
        assert law.send(request).hit_len == hit
        law.finish(request, (7,))
        given_up = law.admit(TokenRequest(request_id="b", ids=(*request.ids, 6, 7)))
        assert given_up.expectation.hit_len == length
        law.stores(given_up, 1, length, length + 2)
        law.release(given_up)
        law.check_integrity()
