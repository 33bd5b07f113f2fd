"""The parts of laws against plain statements of what they do: lists, counters and strings of tokens."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from reference_engine.laws.base import PoolExhausted
from reference_engine.laws.parts.chained import Chained, ChainedHistory, Numbering, longer
from reference_engine.laws.parts.counted_blocks import CountedBlocks
from reference_engine.laws.parts.free_queue import FreeQueue
from reference_engine.laws.parts.history import History
from reference_engine.laws.parts.key_radix import KeyRadix
from reference_engine.laws.parts.keyed_blocks import KeyedBlocks
from reference_engine.laws.parts.recency import Recency
from reference_engine.laws.parts.slot_pool import SlotPool


def array(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("joined", [1, 4, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_a_queue_of_free_blocks_is_a_list(monkeypatch: pytest.MonkeyPatch, seed: int, joined: int) -> None:
    monkeypatch.setattr("reference_engine.laws.parts.free_queue.JOINED", joined)
    queue, rng, size = FreeQueue(40), random.Random(seed), 40
    free, held, front = list(range(1, size)), Counter[int](), set[int]()
    for _ in range(400):
        references = [block for block, count in held.items() for _ in range(count)]
        what = rng.random()
        if what < 0.4:
            count = rng.randint(1, 12)
            if count > len(free):
                with pytest.raises(PoolExhausted, match=f"{count} blocks wanted, {len(free)} free or evictable"):
                    queue.take(count)
            else:
                taken, free = free[:count], free[count:]
                assert queue.take(count).tolist() == taken
                front.difference_update(taken)
                held.update(taken)
        elif what < 0.6:
            others = [block for block in range(1, size) if block not in front]
            blocks = rng.sample(others, min(len(others), rng.randint(1, 6)))
            assert queue.queued(array(*blocks)) == len(set(blocks) & set(free))
            queue.share(array(*blocks))
            held.update(blocks)
            free = [block for block in free if block not in blocks]
        elif references:
            blocks = list(dict.fromkeys(references))
            blocks = blocks if what > 0.97 else rng.sample(blocks, rng.randint(1, len(blocks)))
            held.subtract(blocks)
            freed = [block for block in blocks if not held[block]]
            assert sorted(queue.drop(array(*blocks)).tolist()) == sorted(freed)
            held += Counter()
            if what < 0.8:
                queue.prepend(array(*freed))
                free = freed + free
                front.update(freed)
            else:
                queue.append(array(*freed))
                free += freed
        assert (queue.free, queue.blocks().tolist(), queue.held) == (len(free), free, held.total())
        assert queue.references().tolist() == [held[block] for block in range(size)]
        queue.check_entries()


def test_an_endless_queue_makes_new_blocks() -> None:
    queue = FreeQueue(None)
    assert queue.take(3).tolist() == [1, 2, 3]
    queue.prepend(queue.drop(array(3, 1)))
    assert (queue.free, queue.take(3).tolist(), queue.free) == (2, [3, 1, 4], 0)
    assert queue.take(5000).tolist() == list(range(5, 5005))
    queue.share(array(5004, 2))
    assert queue.references()[[2, 3, 5004]].tolist() == [2, 1, 2] and queue.held == 5006
    queue.drop(array(2))
    queue.shelve(queue.drop(array(2)))
    assert (queue.free, queue.references()[2], queue.seen) == (0, 0, 5005)
    queue.clear()
    assert queue.take(1).tolist() == [1]


@pytest.mark.parametrize("size", [None, 12])
def test_a_pool_gives_new_numbers_first_and_then_the_last_returned(size: int | None) -> None:
    pool, rng = SlotPool(size, "places"), random.Random(1)
    fresh, returned, own = list(range(size or 1000)), list[int](), list[int]()
    assert pool.take_one() == fresh.pop(0)
    own.append(0)
    for _ in range(200):
        count = rng.randint(0, 5)
        if rng.random() < 0.5 and own:
            rng.shuffle(own)
            back, own = own[:count], own[count:]
            pool.give_back(array(*back))
            returned += back if size else []
        elif size and count > len(fresh) + len(returned):
            missing = count - len(fresh) - len(returned)
            assert pool.lacking(count) == missing
            with pytest.raises(PoolExhausted, match=f"{count} places wanted, {missing} missing"):
                pool.take(count)
        else:
            assert pool.lacking(count) == 0
            new, fresh = fresh[:count], fresh[count:]
            old = returned[len(returned) - (count - len(new)) :]
            returned = returned[: len(returned) - len(old)]
            taken = pool.take(count).tolist()
            assert taken == new + old
            own += taken
        assert pool.free == (None if size is None else len(fresh) + len(returned))
        pool.check_integrity(array(*own))


def test_counted_blocks() -> None:
    blocks, rng, holds = CountedBlocks(), random.Random(2), list[int]()
    assert (blocks.take(2), blocks.share([1, 1]), blocks.references(1), blocks.references(5)) == ([0, 1], [1, 1], 3, 0)
    blocks.drop([0, 1, 1])
    assert (blocks.references(0), blocks.references(1), blocks.take(2)) == (0, 1, [0, 2])
    blocks.check_integrity([0, 1, 2])
    blocks.drop([2, 0])
    assert blocks.take(3) == [0, 2, 3]  # last freed first
    holds = [0, 1, 2, 3]
    for _ in range(100):
        if rng.random() < 0.5:
            holds += blocks.take(rng.randint(0, 2)) + blocks.share(rng.sample(holds, min(len(holds), 2)))
        else:
            rng.shuffle(holds)
            blocks.drop(holds[:3])
            holds = holds[3:]
        blocks.check_integrity(holds)
        assert blocks.references(1) == holds.count(1)
    blocks.clear()
    assert blocks.take(1) == [0]


def test_recency_is_a_list() -> None:
    recency, rng, items = Recency[int](), random.Random(3), list[int]()  # newest last
    assert recency.oldest() is None
    for number in range(300):
        what = rng.random()
        if what < 0.4 or not items:
            recency.add(number)
            items.append(number)
        elif what < 0.55:
            newer = rng.choice(items)
            recency.add_behind(newer, number)
            items.insert(items.index(newer), number)
        elif what < 0.8:
            used = rng.sample(items, min(len(items), rng.randint(1, 3)))
            recency.use(*used)
            items = [item for item in items if item not in used] + used[::-1]
        else:
            items.remove(gone := rng.choice(items))
            recency.remove(gone)
        assert (len(recency), recency.oldest()) == (len(items), items[0] if items else None)
        assert [recency.newer_than(item) for item in items] == [*items[1:], None][: len(items)]
        assert number in recency or number not in items
    with pytest.raises(AssertionError, match="in the list already"):
        recency.add(items[0])
    with pytest.raises(AssertionError, match="in the list already"):
        recency.add_behind(items[0], items[1])
    recency.clear()
    assert (len(recency), recency.oldest(), items[0] in recency) == (0, None, False)


@pytest.mark.parametrize(("unit", "lookahead"), [(1, 0), (3, 0), (1, 1), (3, 1), (2, 3)])
def test_keys_are_equal_where_prefixes_are(unit: int, lookahead: int) -> None:
    radix, rng = KeyRadix(unit, lookahead), random.Random(4)
    known = dict[tuple[object, ...], int]()
    for _ in range(300):
        ids = [rng.randint(0, 1) for _ in range(rng.randint(0, 14))]
        space = rng.choice(["a", "b"])
        keys = radix.keys(np.array(ids, np.int32), space)
        assert len(keys) == radix.units(len(ids)) == max(len(ids) - lookahead, 0) // unit
        for number, key in enumerate(keys.tolist(), start=1):
            assert known.setdefault((space, *ids[: number * unit + lookahead]), key) == key
    assert sorted(known.values()) == list(range(1, len(known) + 1)) and radix.count == len(known)
    assert radix.keep(array(1)) is None
    radix.clear()
    assert radix.count == 0 and radix.keys(np.zeros(9, np.int32), "a")[:1].tolist() == [1][: radix.units(9)]


def test_blocks_of_a_trace_are_numbered_when_they_are_seen() -> None:
    numbering = Numbering()
    assert [
        part.tolist() if isinstance(part, np.ndarray) else part for part in numbering.firsts("a", array(3, 1), 4, 0)
    ] == [
        [1, 5],
        8,
    ]
    firsts, used = numbering.firsts("a", array(1, 7, 3), 4, 8)
    assert (firsts.tolist(), used) == ([5, 9, 1], 12)
    firsts, used = numbering.firsts("b", array(3000), 2, 12)
    assert (firsts.tolist(), used, sorted(numbering.known().tolist())) == ([13], 14, [1, 5, 9, 13])
    numbering.move(lambda known: np.where(known == 5, 0, known + 100))
    assert sorted(numbering.known().tolist()) == [101, 109, 113]
    assert numbering.firsts("a", array(3, 1), 4, 200)[0].tolist() == [101, 201]


def test_tables_grow_and_keep_what_they_hold() -> None:
    for size in (1, 2, 5, 100, 5000):
        table = longer(array(1, 2), size)
        assert len(table) >= size and table[:2].tolist() == [1, 2] and not table[2:].any()


@pytest.mark.parametrize("block", [1, 4])
def test_a_history_by_blocks_is_that_of_the_tokens(block: int) -> None:
    """Block numbers that name prefixes; parts of prompts, salts, and generated tokens, which nothing else has."""
    rng, names = random.Random(5), dict[tuple[int, ...], int]()
    by_tokens, by_blocks, alone = History(), History(), ChainedHistory()
    for number in range(300):
        ids = [rng.randint(0, 1) for _ in range(rng.randint(1, 17))]
        ids = [token if at % block else token + 2 for at, token in enumerate(ids)]
        # Blocks that differ do so in their first token.
        firsts = ids[::block]
        tokens = [10 * first + at for first in firsts for at in range(block)][: len(ids)]
        blocks = [names.setdefault(tuple(firsts[: n + 1]), len(names) + 1) for n in range(len(firsts))]
        chain = Chained(array(*blocks), block, len(ids), 100_000 + number, len(ids) + 3)
        space, end = rng.choice([None, "a"]), rng.randint(1, len(ids))
        plain = np.array(tokens, np.int32)
        for cut in (end, len(ids)):
            assert by_tokens.lcp(plain[:cut], space) == by_blocks.lcp(chain.prompt()[:cut], space)
            assert by_tokens.lcp_elsewhere(plain[:cut], space) == by_blocks.lcp_elsewhere(chain.prompt()[:cut], space)
        assert by_blocks.lcp(chain, space) == by_tokens.lcp(plain, space)
        part = chain if number % 3 == 0 else chain.prompt()[:end]
        by_blocks.add(part, space)
        by_tokens.add(plain if number % 3 == 0 else plain[:end], space)
        alone.add(part)
        assert alone.lcp(part) == (len(ids) if number % 3 == 0 else end)
    for history in (by_tokens, by_blocks):
        history.clear()
    assert by_tokens.lcp(plain, None) == by_blocks.lcp(chain, None) == by_blocks.lcp_elsewhere(chain, "b") == 0


def test_one_key_in_several_blocks_is_answered_by_the_oldest() -> None:
    blocks = KeyedBlocks(6, 1)
    blocks.grow_keys(9)
    one, two, three = (blocks.take(1) for _ in range(3))
    for block in (one, two, three):
        blocks.publish(0, array(9), block, array(16))
    assert blocks.holders(0, array(9, 8)).tolist() == [1, 0]
    blocks.forget(two)
    blocks.forget(one)
    assert blocks.holders(0, array(9)).tolist() == [3] and blocks.key_tokens(3) == 16 and blocks.key_tokens(1) is None
    assert blocks.forget(three) and not blocks.forget(three)
    assert blocks.found((0,), array(9, 8)).tolist() == [False, False]
    assert blocks.found((0,), array(9, 8), ever=True).tolist() == [True, False]
    assert not blocks.evicted and blocks.keys().tolist() == []
    blocks.check_integrity(lambda: array(1, 2, 3))


def test_a_block_with_several_keys() -> None:
    blocks = KeyedBlocks(6, 2)
    blocks.grow_keys(5)
    one, two = (int(blocks.take(1)[0]) for _ in range(2))
    blocks.publish_also(1, 5, one, 12)
    blocks.publish_also(1, 4, one, 10)
    blocks.publish_also(1, 4, one, 10)  # known already
    assert blocks.holders(1, array(3, 4, 5)).tolist() == [0, 1, 1] and blocks.holders(0, array(4)).tolist() == [0]
    assert blocks.found((1, 0), array(4)).tolist() == [False] and blocks.key_tokens(one) == 12
    blocks.move_keys(one, two)
    assert blocks.holders(1, array(4, 5)).tolist() == [two, two] and blocks.key_tokens(one) is None
    assert blocks.key_tokens(two) == 12
    blocks.move_keys(one, two)  # nothing to move
    blocks.publish_also(1, 3, two, 13)  # filled further: the shorter ones are gone
    assert blocks.holders(1, array(3, 4, 5)).tolist() == [two, 0, 0] and blocks.key_tokens(two) == 13
    blocks.publish(0, array(2), array(two), array(16))
    assert blocks.holders(1, array(3)).tolist() == [0] and blocks.holders(0, array(2)).tolist() == [two]
    blocks.check_integrity(lambda: array(one, two))
    blocks.give_back(array(one, two))
    assert not blocks.evicted and blocks.take(4).tolist() == [1, 3, 4, 5] and not blocks.evicted
    assert blocks.take(1).tolist() == [two] and blocks.evicted
    blocks.clear()
    blocks.grow_keys(5)
    assert not blocks.evicted and not blocks.found((0,), array(2), ever=True)[0]


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("blank", [None, 2])
def test_blocks_without_a_key_queue_in_front(sort: bool, blank: int | None) -> None:
    blocks = KeyedBlocks(8, 1)
    blocks.grow_keys(2)
    taken = blocks.take(4)
    blocks.publish(0, array(1, 2), taken[2:], array(4, 8))
    blocks.give_back(taken, sort=sort, blank=blank)
    assert blocks.take(7).tolist() == ([1, 2, 5, 6, 7, 3, 4] if sort else [5, 6, 7, 1, 2, 3, 4])
