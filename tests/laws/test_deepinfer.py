"""DeepInfer 0.1.0: numbers that its own scheduler and block manager gave, compiled without CUDA and driven by steps."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.laws.base import Expectation, Law
from reference_engine.laws.deepinfer.law import DeepInfer, Sequence
from reference_engine.laws.deepinfer.replay import (
    Consumers,
    Mode,
    Ring,
    chunk_spans,
    compressed_entries,
    hand_over,
    state_slots,
)
from reference_engine.laws.registry import make_law
from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import LawDoesNotCover, RequestRefused
from vocabulary.ledger import Cause

ID = "deepinfer@0.1.0"
RING, OFF = Ring(128, 6), Consumers(Mode.OFF, 0)
COMPACT = Consumers(Mode.COMPACT, 140)


def request(ids: Tokens[int], name: str = "r", **fields: Any) -> TokenRequest:
    return TokenRequest(request_id=name, ids=tuple(ids), **fields)


def ask(law: Law, ids: Tokens[int], name: str, output: Tokens[int] = (7,), **fields: Any) -> Expectation:
    asked = request(ids, name, max_tokens=len(output), **fields)
    expectation = law.send(asked)
    law.finish(asked, output)
    law.check_integrity()
    return expectation


def law_with(**options: Any) -> DeepInfer:
    law = make_law(ID, {"groups": ["full", "swa:128"], **options})
    assert isinstance(law, DeepInfer)
    return law


def held(law: DeepInfer, asked: TokenRequest) -> Sequence:
    sequence = law.admit(asked).held
    assert isinstance(sequence, Sequence)
    return sequence


# --- hits -------------------------------------------------------------------------------------------------------------


def test_an_independent_identical_request_gets_nothing() -> None:
    law = law_with()
    ask(law, range(1000), "a")
    got = ask(law, range(1000), "b")
    assert got.hit_len == got.position_start == 0
    assert got.ledger.by_cause() == {Cause.DISABLED: 999, Cause.LAST_TOKEN: 1}


@pytest.mark.parametrize("hit", [0, 1, 127, 128, 129, 500, 999])
def test_an_injected_hit_is_taken_as_it_is(hit: int) -> None:
    law = law_with()
    got = ask(law, range(1000), "a", external_hit=hit)
    assert (got.hit_len, got.position_start, got.ledger.reused) == (hit, hit, hit)
    sequence = held(law, request(range(1000), "b", external_hit=hit))
    assert len(sequence.blocks) == 8 and sequence.shared == 0  # fresh blocks for the whole prompt


@pytest.mark.parametrize("hit", [1000, 1001, -1])
def test_a_hit_of_the_whole_prompt_aborts_the_engine(hit: int) -> None:
    with pytest.raises(RequestRefused, match="aborts the engine; inject at most 999"):
        law_with().admit(request(range(1000), external_hit=hit))


@pytest.mark.parametrize(("prompt", "outputs", "blocks"), [(1000, 1, 8), (1024, 1, 8), (600, 6, 5)])
def test_fork_of_a_complete_parent(prompt: int, outputs: int, blocks: int) -> None:
    """1000 of 1001, 1024 of 1025, 605 of 606; the last block is copied even when it is full."""
    law, output = law_with(), list(range(5000, 5000 + outputs))
    ask(law, range(prompt), "parent", output)
    tokens = [*range(prompt), *output]
    fork = law.admit(request(tokens, "child", fork_of="parent"))
    computed = len(tokens) - 1
    assert (fork.expectation.hit_len, fork.expectation.position_start) == (computed, computed)
    sequence = fork.held
    assert isinstance(sequence, Sequence)
    parent = law._sequences["parent"]
    assert sequence.shared == blocks - 1
    assert sequence.blocks[: blocks - 1] == parent.blocks[: blocks - 1]
    assert sequence.copied_from == parent.blocks[blocks - 1] != sequence.blocks[blocks - 1]
    assert sequence.state_from == parent.state_slot != sequence.state_slot
    assert all(law.blocks.references(block) == 2 for block in sequence.blocks[: blocks - 1])
    law.check_integrity()


@pytest.mark.parametrize(("computed", "shared", "copied"), [(256, 2, False), (300, 2, True), (100, 0, True)])
def test_fork_of_a_parent_in_prefill(computed: int, shared: int, copied: bool) -> None:
    """The tail is copied only where it is partial; later blocks of the parent are not taken."""
    law = law_with(chunked_prefill=True, chunk_tokens=computed)
    parent = law.admit(request(range(1000), "parent"))
    with pytest.raises(RequestRefused, match="computed nothing"):
        law.admit(request(range(1000), "_child", fork_of="parent"))
    law.computed(parent, law.chunk_end(parent))
    assert parent.computed_len == computed
    sequence = held(law, request(range(1000), "_child", fork_of="parent"))
    assert sequence.lease.expectation.hit_len == computed
    assert (sequence.shared, sequence.copied_from is not None) == (shared, copied)
    with pytest.raises(LawDoesNotCover, match="underscore"):
        law.admit(request(range(1000), "child", fork_of="parent"))
    law.check_integrity()


def test_forks_that_the_engine_refuses_or_nobody_stated() -> None:
    law = law_with()
    ask(law, range(300), "parent")
    with pytest.raises(RequestRefused, match="no sequence 'nobody'"):
        law.admit(request(range(300), "c", fork_of="nobody"))
    with pytest.raises(RequestRefused, match="position 5 differs"):
        law.admit(request([*range(5), *range(900, 1200)], "c", fork_of="parent"))
    with pytest.raises(RequestRefused, match="log-probabilities"):
        law.admit(request(range(301), "c", fork_of="parent", features=frozenset({Feature.PROMPT_LOGPROBS})))
    with pytest.raises(LawDoesNotCover, match="external hit and a parent"):
        law.admit(request(range(301), "c", fork_of="parent", external_hit=1))
    with pytest.raises(LawDoesNotCover, match="no namespaces"):
        law.admit(request(range(301), "c", namespace="a"))
    with pytest.raises(LawDoesNotCover, match="recurrent state"):
        make_law(ID, {"groups": ["full", "gdn"]}).admit(request(range(9), external_hit=1))
    law.check_integrity()


def test_a_forked_chat_reuses_every_turn_and_an_independent_one_none() -> None:
    forked, independent = law_with(), law_with()
    tokens, hits = list(range(200)), []
    for turn in range(4):
        output = list(range(10_000 * (turn + 1), 10_000 * (turn + 1) + 30))
        parent = {"fork_of": f"turn{turn - 1}"} if turn else {}
        hits.append(ask(forked, tokens, f"turn{turn}", output, **parent).hit_len)
        assert ask(independent, tokens, f"turn{turn}", output).hit_len == 0
        tokens = [*tokens, *output]
    assert hits == [0, 229, 259, 289]
    forked.reset()
    forked.check_integrity()


# --- windows, ring, replay --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "valid", "zeros", "first_keys", "full_row"),
    [
        (0, 0, 128, 1, 127),
        (50, 0, 78, 51, 77),
        (512, 0, 0, 128, 0),
        (512, 512, 128, 1, 127),
        (512, 480, 96, 33, 95),
        (512, 400, 16, 113, 15),
        (512, 300, 0, 128, 0),
    ],
)
def test_zero_filled_window_entries(start: int, valid: int, zeros: int, first_keys: int, full_row: int) -> None:
    """L = 1000, W = 128, ring of 134."""
    (chunk,) = hand_over(RING, OFF, 1000, start, valid_start=valid).chunks
    assert (chunk.zero_filled, chunk.first_row_keys, chunk.full_window_row) == (zeros, first_keys, full_row)
    assert sum(end - begin for begin, end in chunk.ring_reads) == 128 - zeros
    assert chunk.ring_writes == 134


def test_ring_slots() -> None:
    (chunk,) = hand_over(RING, OFF, 1000, 512).chunks
    assert RING.slots == 134
    assert chunk.ring_reads == ((116, 134), (0, 110))
    (chunk,) = hand_over(RING, OFF, 1000, 50).chunks
    assert chunk.ring_reads == ((0, 50),)


def test_a_valid_start_behind_the_step_fails_a_check() -> None:
    with pytest.raises(ValueError, match="valid start 513"):
        hand_over(RING, OFF, 1000, 512, valid_start=513)


@pytest.mark.parametrize(
    ("start", "rows"),
    [(0, 140), (139, 140), (140, 140), (141, 140), (512, 140), (859, 140), (860, 140), (861, 139), (999, 1)],
)
def test_consumer_rows(start: int, rows: int) -> None:
    """K = 140, L = 1000: a hit spares the consumers nothing up to L - K = 860, and one row each behind it."""
    got = hand_over(RING, COMPACT, 1000, start)
    assert [chunk.consumer_rows for chunk in got.chunks] == [rows]
    assert (got.saved_by_producers, got.saved_by_consumers) == (start, max(0, start - 860))


@pytest.mark.parametrize("length", [140, 141])
def test_consumer_rows_of_short_prompts(length: int) -> None:
    assert hand_over(RING, COMPACT, length, 0).chunks[0].consumer_rows == 140


def test_consumer_rows_by_chunk() -> None:
    chunks = hand_over(RING, COMPACT, 1000, 0, chunk_tokens=400).chunks
    assert [chunk.consumer_rows for chunk in chunks] == [1, 1, 140]
    assert [chunk.consumer_ring_writes for chunk in chunks] == [0, 0, 134]


def test_masked_consumers_compute_every_row() -> None:
    (chunk,) = hand_over(RING, Consumers(Mode.MASK, 140), 1000, 0).chunks
    assert (chunk.consumer_rows, chunk.consumer_ring_writes) == (1000, 134)


def test_keep_tokens_below_the_ring_fail_a_check() -> None:
    with pytest.raises(LawDoesNotCover, match="keep_tokens = 133 fails"):
        law_with(yoco_mode="compact", keep_tokens=133)
    assert law_with(yoco_mode="compact", keep_tokens=134).consumers.keep == 134
    assert law_with(yoco_mode="compact").consumers.keep == 140


@pytest.mark.parametrize(("hit", "saved"), [(100, 0), (134, 0), (135, 1), (512, 378), (999, 865)])
def test_external_replay_saves_h_minus_r(hit: int, saved: int) -> None:
    law = law_with(external_replay=134)
    got = ask(law, range(1000), "a", external_hit=hit)
    assert got.hit_len == got.position_start == saved
    assert got.ledger.tokens(Cause.REPLAY) == hit - saved
    over = law.hand_over(request(range(1000), external_hit=hit))
    assert (over.start, over.valid_start, over.saved_by_producers) == (saved, saved, saved)
    assert over.chunks[0].zero_filled == 128  # nothing before the replayed part is visible
    assert over.approximate == ((saved, saved + 127) if saved else None)


def test_replay_shorter_than_the_ring_leaves_a_hole() -> None:
    with pytest.raises(LawDoesNotCover, match="hole in the ring of 134"):
        law_with(external_replay=133)


def test_the_two_rules_are_two() -> None:
    """R moves the start; K does not. The published sentence that hits up to K save nothing is about neither start."""
    replayed, truncated = law_with(external_replay=140), law_with(yoco_mode="compact", keep_tokens=140)
    asked = request(range(1000), external_hit=140)
    assert replayed.hand_over(asked).start == 0
    over = truncated.hand_over(asked)
    assert (over.start, over.saved_by_producers, over.saved_by_consumers) == (140, 140, 0)


def test_small_arithmetic() -> None:
    assert chunk_spans(0, 1000, 400) == ((0, 400), (400, 800), (800, 1000))
    assert chunk_spans(0, 1000, 401) == ((0, 401), (401, 802), (802, 1000))
    assert chunk_spans(0, 1000, 403, context_parallel=2) == ((0, 400), (400, 800), (800, 1000))
    assert chunk_spans(0, 1000, 401, context_parallel=4) == ((0, 400), (400, 800), (800, 1000))
    assert chunk_spans(32, 97, None) == ((32, 97),)
    assert [compressed_entries(n, 4) for n in (0, 3, 4, 7, 128)] == [0, 0, 1, 1, 32]
    assert [state_slots(n) for n in (1, 10, 16)] == [2, 13, 20]
    with pytest.raises(ValueError, match="does not divide"):
        compressed_entries(10, 3)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 5), st.booleans()), min_size=1, max_size=10))
def test_books_hold_through_forks(steps: list[tuple[int, int, bool]]) -> None:
    law, parent, computed = law_with(), None, 0
    tokens: list[int] = []
    for number, (grow, outputs, fork) in enumerate(steps):
        tokens = [*tokens, *range(1000 * number, 1000 * number + grow)]
        output = list(range(-outputs, 0))
        got = ask(law, tokens, str(number), output, fork_of=parent if fork else None)
        assert got.hit_len == (min(computed, len(tokens) - 1) if fork and parent else 0)
        tokens, parent = tokens + output, str(number)
        computed = len(tokens) - 1
    law.reset()
    law.check_integrity()


@pytest.mark.parametrize("chunk", [None, 300])
def test_consumers_that_are_not_cut_short_are_spared_the_hit(chunk: int | None) -> None:
    got = hand_over(RING, OFF, 1000, 512, chunk_tokens=chunk)
    assert (got.saved_by_producers, got.saved_by_consumers) == (512, 512)


def test_a_request_id_is_free_again_when_its_request_has_ended() -> None:
    law = law_with()
    running = law.admit(request(range(300), "a"))
    with pytest.raises(RequestRefused, match="'a' is alive"):
        law.admit(request(range(300), "a"))
    law.computed(running, 300)
    law.release(running)
    law.release(law.admit(request(range(200), "a")))
    law.check_integrity()
