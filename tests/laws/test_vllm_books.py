"""The books behind vLLM's laws: keys, free blocks, tables; and that an unbounded pool is a large one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_asking import VERSIONS, P, ask, other

from reference_engine.laws.base import PoolExhausted
from reference_engine.laws.parts.chained import Chained, chained_request
from reference_engine.laws.parts.free_queue import FreeQueue
from reference_engine.laws.parts.key_radix import KeyRadix
from reference_engine.laws.parts.keyed_blocks import KeyedBlocks
from reference_engine.laws.registry import make_law
from reference_engine.laws.vllm.law import VllmLaw
from reference_engine.laws.vllm.steps import decode_step, prefill_step
from reference_engine.laws.vllm.switches import ASCEND, VLLM
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover

IDS = st.lists(st.integers(0, 1), min_size=1, max_size=24)
REQUESTS = st.lists(st.tuples(IDS, st.integers(1, 9)), min_size=1, max_size=10)
CONFIGURATIONS: list[dict[str, Any]] = [
    {"groups": ["full:4"]},
    {"groups": ["full:4", "swa:4:9"]},
    {"groups": ["full:4", "gdn:4", "gdn:4"], "max_num_batched_tokens": 8},
    {"groups": ["full:4", "swa:4:9", "gdn:4"]},
    {"groups": ["full:4", "gdn:4"], "num_speculative_tokens": 2, "method": "mtp"},
    {"groups": ["full:8", "gdn:8"], "prefix_match_unit": 2, "num_speculative_tokens": 1, "method": "mtp"},
]


@given(st.lists(IDS, min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 2))
@settings(deadline=None)
def test_keys_are_equal_exactly_for_equal_prefixes(prompts: list[list[int]], unit: int, ahead: int) -> None:
    radix = KeyRadix(unit, ahead)
    seen: dict[int, tuple[int, ...]] = {}
    for ids in prompts * 2:
        keys = radix.keys(np.asarray(ids, np.int32), "")
        assert len(keys) == max(0, len(ids) - ahead) // unit
        for i, key in enumerate(keys.tolist()):
            assert seen.setdefault(key, tuple(ids[: (i + 1) * unit + ahead])) == tuple(ids[: (i + 1) * unit + ahead])
    assert len(set(seen.values())) == len(seen) and set(seen) <= set(range(1, radix.count + 1))


def test_keys_are_separate_per_namespace() -> None:
    radix, ids = KeyRadix(2), np.arange(8, dtype=np.int32)
    assert not set(radix.keys(ids, "a")) & set(radix.keys(ids, "b"))


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["take", "append", "prepend", "share"]), st.integers(1, 4)), max_size=60
)


@given(OPERATIONS)
@settings(deadline=None)
def test_free_queue_is_a_queue(operations: list[tuple[str, int]]) -> None:
    queue, plain, out, front = FreeQueue(12), list(range(1, 12)), [], set[int]()
    for name, count in operations:
        if name == "take":
            if count > len(plain):
                with pytest.raises(PoolExhausted):
                    queue.take(count)
                continue
            taken = queue.take(count).tolist()
            assert taken == plain[:count]
            del plain[:count]
            out += taken
        elif name == "share":  # what was put in front cannot be found
            gone = [block for block in plain if block not in front][1 : 1 + count]
            queue.share(np.asarray(gone, np.int64))
            plain = [block for block in plain if block not in gone]
            out += gone
        else:
            back, out = out[:count], out[count:]
            getattr(queue, name)(np.asarray(back, np.int64))
            plain = plain + back if name == "append" else back + plain
            front = front - set(back) if name == "append" else front | set(back)
        assert queue.blocks().tolist() == plain and queue.free == len(plain)


def test_a_key_may_have_several_holders_and_a_block_several_keys() -> None:
    blocks = KeyedBlocks(8, 1)
    blocks.grow_keys(10)
    first, second, third = blocks.take(3).tolist()
    for block in (first, second):
        blocks.publish(0, np.asarray([5]), np.asarray([block]), np.asarray([4]))
    blocks.publish_also(0, 6, third, 8)
    blocks.publish_also(0, 7, third, 6)
    assert blocks.holders(0, np.asarray([5, 6, 7])).tolist() == [first, third, third]
    blocks.forget(np.asarray([first]))
    assert blocks.holders(0, np.asarray([5])).tolist() == [second]
    blocks.move_keys(third, first)
    assert blocks.holders(0, np.asarray([6, 7])).tolist() == [first, first]
    blocks.publish(0, np.asarray([9]), np.asarray([first]), np.asarray([12]))  # filled: the shorter keys go
    assert blocks.holders(0, np.asarray([6, 7, 9])).tolist() == [0, 0, first]
    blocks.check_integrity(lambda: np.asarray([first, second, third]))


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=lambda options: "+".join(options["groups"]))
@given(version=st.sampled_from(VERSIONS), requests=REQUESTS)
@settings(max_examples=20, deadline=None)
def test_a_large_pool_is_an_unbounded_one(
    version: str, options: dict[str, Any], requests: list[tuple[list[int], int]]
) -> None:
    if version == "0.23" and "prefix_match_unit" in options:
        return
    laws = [make_law(f"vllm@{version}", options | more) for more in ({}, {"num_gpu_blocks_override": 2000})]
    for ids, outputs in requests:
        answers = [ask(law, ids, output=[i % 2 for i in range(outputs)]) for law in laws]
        assert answers[0] == answers[1]


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=lambda options: "+".join(options["groups"]))
@given(version=st.sampled_from(VERSIONS), requests=REQUESTS, spare=st.integers(0, 12))
@settings(max_examples=20, deadline=None)
def test_books_of_a_small_pool_add_up(
    version: str, options: dict[str, Any], requests: list[tuple[list[int], int]], spare: int
) -> None:
    if version == "0.23" and "prefix_match_unit" in options:
        return
    law = make_law(f"vllm@{version}", options | {"num_gpu_blocks_override": 14 * len(options["groups"]) + spare})
    for ids, outputs in requests:
        try:
            found = ask(law, ids, output=[i % 2 for i in range(outputs)])
        except LawDoesNotCover:
            law.check_integrity()
            continue
        assert found.ledger.reused == found.hit_len < len(ids)
    law.reset()
    assert ask(law, P[:20]).hit_len == 0


def test_reset_is_refused_while_a_request_holds_blocks() -> None:
    law = make_law("vllm@0.32", {"groups": ["full:4"]})
    lease = law.admit(TokenRequest(request_id="r", ids=(1, 2, 3)))
    with pytest.raises(AssertionError, match="reset"):
        law.reset()
    law.release(lease)
    law.reset()


def test_drafts_end_where_the_context_does() -> None:
    """Of 64 positions the last token takes one, so that a step computes up to 63 (v1/core/sched/scheduler.py)."""
    options = {"groups": ["full:16"], "max_model_len": 64, "method": "mtp", "num_speculative_tokens": 2}
    law = make_law("vllm@0.30", options)
    assert isinstance(law, VllmLaw)
    assert [decode_step(law.plan, known).target for known in range(59, 65)] == [61, 62, 63, 63, 63, 64]


def test_only_releases_that_sort_hand_out_blocks_without_a_key_first() -> None:
    """A prompt's last, partial block has no key: from 0.26 on it is taken before the oldest cached one is evicted."""
    hits = {}
    for version in VERSIONS:
        law = make_law(f"vllm@{version}", {"block_size": 16, "num_gpu_blocks_override": 6})
        for prompt in (P[:17], other(33), other(17)):
            ask(law, prompt)
        hits[version] = ask(law, P[:17]).hit_len
    assert hits == {"0.23": 0, "0.26": 16, "0.30": 16, "0.32": 16, "0.33": 16}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hit_on_free_blocks_is_counted_as_wanted(version: str) -> None:
    law = make_law(f"vllm@{version}", {"block_size": 4, "num_gpu_blocks_override": 9})
    ask(law, P[:17])
    running = law.admit(TokenRequest(request_id="r", ids=tuple(other(16))))  # leaves the four cached blocks
    with pytest.raises(PoolExhausted, match="5 blocks wanted for the prompt, 4 free"):
        law.admit(TokenRequest(request_id="s", ids=(*P[:16], 5)))
    law.check_integrity()
    fits = law.admit(TokenRequest(request_id="t", ids=tuple(P[:16])))
    assert fits.expectation.hit_len == 12
    for lease in (running, fits):
        law.computed(lease, 16)
        law.release(lease)
    law.check_integrity()


def test_a_long_prompt_that_returns_again_and_again_leaves_the_queue_in_order() -> None:
    """Each return takes 5,000 blocks out of the middle of the queue, which is then compacted."""
    law = make_law("vllm@0.32", {"block_size": 1, "num_gpu_blocks_override": 6000})
    assert [ask(law, P[:5000]).hit_len for _ in range(5)] == [0, *[4999] * 4]
    short = other(10)
    ask(law, short)
    assert ask(law, other(980)).hit_len == 0  # fits into what was never used
    assert ask(law, P[:5000]).hit_len == 4999
    ask(law, other(900))  # 9 were never used; the short prompt and most of the 980 go, used longest ago
    assert (ask(law, P[:5000]).hit_len, ask(law, short).hit_len) == (4999, 0)


def test_a_chain_has_a_key_for_each_whole_unit() -> None:
    for unit, ahead, stop in itertools.product((4, 8, 16), (0, 1), (16, 31, 32, 40, 47, 48)):
        chain = Chained(np.array([1, 2], np.int64), 16, 31, 3, 48)
        assert len(KeyRadix(unit, ahead).keys(chain[:stop], "")) == max(stop - ahead, 0) // unit


@pytest.mark.parametrize("version", VERSIONS)
def test_a_window_is_counted_with_what_one_step_adds_to_it(version: str) -> None:
    """Of 300 tokens full attention wants 19 blocks; a window of 40 with a budget of 96 at most ceil(135 / 16) + 1."""
    options = {"groups": ["full:16", "swa:16:40"], "num_gpu_blocks_override": 29, "max_num_batched_tokens": 96}
    with pytest.raises(PoolExhausted, match="29 blocks wanted for the prompt, 28 free"):
        make_law(f"vllm@{version}", options).admit(TokenRequest(request_id="r", ids=tuple(P[:300])))
    ask(make_law(f"vllm@{version}", options | {"num_gpu_blocks_override": 30}), P[:300])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("context", "padded"), [(None, True), (54, True), (53, True), (52, False)])
def test_a_last_token_is_padded_with_drafts_where_the_context_has_room(
    version: str, context: int | None, padded: bool
) -> None:
    """From 0.30 on: the token at 49, two drafts and the token sampled behind them."""
    limit = {} if context is None else {"max_model_len": context}
    law = make_law(f"vllm@{version}", {"method": "mtp", "num_speculative_tokens": 2, **limit})
    assert isinstance(law, VllmLaw)
    step = prefill_step(law.plan, 50, 49, 0, first=True)
    assert (step.start, step.end, step.target) == (49, 50, 52 if padded and version >= "0.30" else 50)


@pytest.mark.parametrize(("version", "wanted"), [("0.26", 6), ("0.30", 6), ("0.32", 5), ("0.33", 5)])
def test_a_hit_inside_a_block_is_counted_with_the_block_it_is_copied_to(version: str, wanted: int) -> None:
    """Two blocks of a hit of 96 and a copy of the second; the state of the hit and its copy, in some a next one."""
    options = {"groups": ["full:64", "gdn:64"], "prefix_match_unit": 16, "num_gpu_blocks_override": wanted + 2}
    law = make_law(f"vllm@{version}", options)
    ask(law, P[:100])
    running = law.admit(TokenRequest(request_id="r", ids=tuple(other(60))))
    law.chunk_end(running)
    with pytest.raises(PoolExhausted, match=f"{wanted} blocks wanted for the prompt, {wanted - 1} free"):
        law.admit(TokenRequest(request_id="s", ids=(*P[:100], 5)))
    law.release(running)
    law.check_integrity()
    assert law.admit(TokenRequest(request_id="s", ids=(*P[:100], 5))).expectation.hit_len == 96


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_group_alone_would_allow_is_still_there(version: str) -> None:
    law = make_law(f"vllm@{version}", {"groups": ["full:16", "swa:16:32"], "num_gpu_blocks_override": 30})
    ask(law, P[:160])
    assert ask(law, P[:160]).per_group == {"full:16": 144, "swa:16:32": 144}
    for first in range(1, 4):
        ask(law, [first, *other(160)])
    assert ask(law, P[:160]).per_group == {"full:16": 0, "swa:16:32": 0}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_may_generate_more_than_was_asked_for(version: str) -> None:
    windows = {"groups": ["full:4", "swa:4:5"], "prefix_cache_retention_interval": None}
    for options in ({}, {"method": "mtp", "num_speculative_tokens": 1}, windows):
        law = make_law(f"vllm@{version}", {"block_size": 4} | options)
        for longer in ([7, 8, 9, 10, 11, 12, 13], [7, 8, 9, 10]):
            request = TokenRequest(request_id="r", ids=tuple(P[:6]), max_tokens=1)
            law.send(request)
            law.finish(request, longer)
            law.check_integrity()
        drops = "method" in options and version != "0.33"
        assert ask(law, [*P[:6], 7, 8, 9, 10, 11, 12, 13, 14]).hit_len == (8 if drops else 12)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("groups", [["full:4"], ["full:4", "swa:4:9"], ["full:4", "gdn:4"], ["swa:4:9"], ["gdn:4"]])
def test_steps_that_the_caller_cuts_get_their_blocks(version: str, groups: list[str]) -> None:
    law = make_law(f"vllm@{version}", {"groups": groups, "num_blocks": 40})
    for hit in (0, 12):
        lease = law.admit(TokenRequest(request_id="r", ids=tuple(P[:15]), max_tokens=3))
        assert (lease.expectation.hit_len, lease.expectation.junction) == (hit, hit)
        for end in range(lease.computed_len + 2, 15, 2):
            law.computed(lease, end)
            law.check_integrity()
        law.computed(lease, 15)
        for token in (7, 8):
            law.append(lease, token)
            law.computed(lease, lease.length)
        for group, text in enumerate(groups):
            places = [law.state(lease, group, 17)] if "gdn" in text else law.slots(lease, group, 13, 17).tolist()
            assert min(places) > 3 * ("gdn" not in text) and len(set(places)) == len(places)
        law.release(lease)
        law.check_integrity()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_last_token_asked_for_takes_no_block(version: str) -> None:
    law = make_law(f"vllm@{version}", {"block_size": 4, "num_blocks": 1})
    lease = law.admit(TokenRequest(request_id="r", ids=tuple(P[:3]), max_tokens=3))
    law.computed(lease, law.chunk_end(lease))
    law.append(lease, 7)
    law.computed(lease, 4)
    with pytest.raises(PoolExhausted, match="1 blocks wanted at position 4, 0 free"):
        law.append(lease, 8)
    law.release(lease)
    lease = law.admit(TokenRequest(request_id="r", ids=tuple(P[:3]), max_tokens=2))
    law.computed(lease, law.chunk_end(lease))
    law.append(lease, 7)
    law.computed(lease, 4)
    law.append(lease, 8)
    law.release(lease)
    law.check_integrity()


def least_pool(law_id: str, options: dict[str, Any], length: int, outputs: int) -> int:
    """Usable blocks that a prompt and its output need on an empty pool, and again for its repeat."""
    for blocks in range(1, 60):
        law = make_law(law_id, options | {"num_blocks": blocks})
        try:
            for _ in range(2):
                ask(law, P[:length], output=[7] * outputs)
        except PoolExhausted:
            law.check_integrity()
            continue
        return blocks
    raise AssertionError("60 blocks are too few")


STATES_8 = {"groups": ["full:4", "gdn:4"], "max_num_batched_tokens": 8}


@pytest.mark.parametrize(
    ("options", "length", "outputs", "blocks"),
    [
        ({"groups": ["full:4"]}, 16, 1, 4),
        ({"groups": ["full:4"]}, 17, 4, 5),
        ({"groups": ["full:4"], "num_speculative_tokens": 3, "method": "mtp"}, 16, 1, 5),
        ({"groups": ["full:4"], "num_speculative_tokens": 3, "method": "ngram"}, 16, 1, 4),
        ({"groups": ["full:4", "swa:4:9"]}, 30, 9, 16),
        ({"groups": ["full:4", "swa:4:9"], "max_num_batched_tokens": 8}, 30, 9, 13),
        ({"groups": ["gdn:4"]}, 30, 9, 2),
        ({"groups": ["full:4", "gdn:4"]}, 30, 9, 12),
        (STATES_8, 30, 9, 12),
        (STATES_8, 32, 1, 10),
        (STATES_8 | {"num_speculative_tokens": 2}, 30, 9, 15),
        (STATES_8 | {"num_speculative_tokens": 5}, 30, 9, 20),
    ],
    ids=str,
)
@pytest.mark.parametrize("law_id", [switches.law_id for switches in (*VLLM, *ASCEND)])
def test_the_least_pool(law_id: str, options: dict[str, Any], length: int, outputs: int, blocks: int) -> None:
    """Whole blocks up to the last token computed, of a window at most those of one step and itself, two states.

    A drafter's slots and states come on top. vLLM-Ascend counts one state more (its patch of the free-block check).
    With more drafts than a block holds, 0.23 keeps states that later releases have given back.
    """
    ascend = law_id.startswith("vllm-ascend") and "gdn:4" in options["groups"]
    keeps = options.get("num_speculative_tokens") == 5 and law_id.endswith("0.23")
    assert least_pool(law_id, options, length, outputs) == blocks + ascend + keeps


@pytest.mark.parametrize(
    ("most", "blocks", "counts"),
    [(10, 8, [4, 8, 8, 12, 16, 8, 12]), (11, 4, [4, 8, 4, 8, 4]), (12, 4, [4, 8, 12, 4, 8, 12, 4])],
)
def test_keys_wait_until_there_are_twice_as_many_as_blocks(
    monkeypatch: pytest.MonkeyPatch, most: int, blocks: int, counts: list[int]
) -> None:
    """Or `KEYS` of them; each prompt, known by the blocks of a trace, has four."""
    monkeypatch.setattr("reference_engine.laws.vllm.law.KEYS", most)
    bounded, unbounded = (make_law("vllm@0.32", {"block_size": 4} | more) for more in ({"num_blocks": blocks}, {}))
    assert isinstance(bounded, VllmLaw) and isinstance(unbounded, VllmLaw)
    found = []
    for number in range(1, len(counts) + 1):
        for law in (bounded, unbounded):
            law.serve(chained_request(str(number), np.array([number]), 16, 16, number), (-1,))
        found.append(bounded.radix.count)
    assert found == counts and unbounded.radix.count == 4 * len(counts)
