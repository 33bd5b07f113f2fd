"""Options of llama.cpp's laws: what is taken and refused, the defaults, and the sizes that follow from them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from refusing import refuses

from reference_engine.laws.base import Ids
from reference_engine.laws.llama_cpp.checkpoints import Checkpoint, CheckpointRule
from reference_engine.laws.llama_cpp.in_process import ContextOptions, LlamaCppPython
from reference_engine.laws.llama_cpp.memory import Snapshot
from reference_engine.laws.llama_cpp.ram_cache import Most, RamCache, StateBytes
from reference_engine.laws.llama_cpp.server import LlamaCppServer, ServerOptions
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import parse_groups
from vocabulary.ledger import Cause

SERVER, PYTHON = "llama.cpp", "llama-cpp-python@0.3"
WINDOW, STATES = {"groups": ["full", "swa:128"]}, {"groups": ["full", "gdn"]}


def server(**options: Any) -> LlamaCppServer:
    law = make_law(SERVER, options)
    assert isinstance(law, LlamaCppServer)
    return law


def python(**options: Any) -> LlamaCppPython:
    law = make_law(PYTHON, options)
    assert isinstance(law, LlamaCppPython)
    return law


def request(length: int, outputs: int = 1, first: int = 0) -> TokenRequest:
    return TokenRequest(request_id=f"{first}", ids=tuple(range(first, first + length)), max_tokens=outputs)


@pytest.mark.parametrize(
    ("law_id", "names", "least"),
    [
        (SERVER, ("n_parallel", "n_ctx", "n_ctx_slot", "n_batch", "n_ubatch"), 1),
        (SERVER, ("n_ctx_checkpoints", "ctx_checkpoints", "checkpoint_min_step", "n_cache_reuse", "cache_ram_mib"), 0),
        (PYTHON, ("n_ctx", "n_batch", "n_ubatch"), 1),
    ],
)
def test_whole_numbers(law_id: str, names: tuple[str, ...], least: int) -> None:
    for name in names:
        for value in (least, least + 1):
            assert not refuses(law_id, **{name: value}), (name, value)
        for value in (-2, least - 1, True, False, 1.0, "1"):
            covered = name == "cache_ram_mib" and value == -1 and not isinstance(value, bool)
            assert refuses(law_id, **{name: value}), (name, value)
            assert not covered or not refuses(law_id, n_ctx=256, **{name: value})
    for name in ("state_bytes_per_token", "window_bytes_per_token", "recurrent_state_bytes"):
        sizes = dict.fromkeys(("state_bytes_per_token", "window_bytes_per_token", "recurrent_state_bytes"), 1)
        for value in (0, 1, 2):
            assert not refuses(SERVER, cache_ram_mib=1, **sizes | {name: value})
        for value in (-1, True, 1.0, "1"):
            assert refuses(SERVER, cache_ram_mib=1, **sizes | {name: value})


def test_shares_and_flags() -> None:
    assert [refuses(SERVER, slot_prompt_similarity=value) for value in (0, 0.5, 1, -0.1, 1.1, True, "1")] == [
        *[False] * 3, *[True] * 4,
    ]  # fmt: skip
    for law_id, names in ((SERVER, ("swa_full", "kv_unified", "cache_idle_slots")), (PYTHON, ("swa_full",))):
        for name in names:
            assert [refuses(law_id, **{name: value}) for value in (True, False, 1, None, "true")] == [
                *[False] * 2, *[True] * 3,
            ]  # fmt: skip


def test_defaults_of_the_server() -> None:
    """Those of the adapter; the classes' own are the same."""
    assert server().options == ServerOptions(
        groups=parse_groups(["full"]), n_parallel=1, slot_prompt_similarity=0.1, n_ctx_slot=None, n_batch=2048,
        n_ubatch=512, n_ctx_checkpoints=32, checkpoint_min_step=8192, swa_full=False, n_cache_reuse=0,
        kv_unified=False, cache_idle_slots=True,
    )  # fmt: skip
    assert server().options == ServerOptions() and server().ram is None
    named: dict[str, Any] = {
        "n_parallel": 3, "slot_prompt_similarity": 0.5, "n_ctx_slot": 300, "n_batch": 50, "n_ubatch": 40,
        "n_ctx_checkpoints": 5, "checkpoint_min_step": 6, "swa_full": True, "n_cache_reuse": 7, "kv_unified": True,
        "cache_idle_slots": False,
    }  # fmt: skip
    assert server(**named).options == ServerOptions(groups=parse_groups(["full"]), **named)
    assert [server(**{name: 0}).options.n_ctx_checkpoints for name in ("n_ctx_checkpoints", "ctx_checkpoints")] == [
        0
    ] * 2
    assert server(n_ctx_checkpoints=3, ctx_checkpoints=3).options.n_ctx_checkpoints == 3


def test_defaults_in_process() -> None:
    """llama_cpp.Llama keeps window layers whole (0.3.36)."""
    assert python().options == ContextOptions(
        groups=parse_groups(["full"]), n_ctx=None, n_batch=512, n_ubatch=512, swa_full=True
    )
    assert python().options == ContextOptions()
    named: dict[str, Any] = {"n_ctx": 300, "n_batch": 50, "n_ubatch": 40, "swa_full": False}
    assert python(**named).options == ContextOptions(groups=parse_groups(["full"]), **named)


def test_a_step_is_no_longer_than_the_context() -> None:
    def batches(**options: Any) -> tuple[int, int]:
        made = server(**options).options
        return made.n_batch, made.n_ubatch

    assert batches(n_batch=100) == (100, 100) and batches(n_batch=100, n_ubatch=99) == (100, 99)
    assert batches(n_ctx_slot=300) == (300, 300) and batches(n_ctx_slot=700) == (700, 512)
    assert batches(n_ctx_slot=300, n_parallel=3) == (900, 512)
    assert batches(n_ctx_slot=300, n_parallel=3, kv_unified=True) == (300, 300)
    for n_ctx, steps in ((511, (511, 511)), (512, (512, 512)), (513, (512, 512)), (None, (512, 512))):
        made = python(n_ctx=n_ctx).options
        assert (made.n_batch, made.n_ubatch) == steps
    made = python(n_ctx=700, n_batch=600).options
    assert (made.n_batch, made.n_ubatch) == (600, 512)


def test_a_slot_has_its_padded_part_of_the_context() -> None:
    """Both are padded to 256 cells; slots of a unified cache may use all of it."""
    for n_ctx, slots, cells in (
        (1, 1, 256), (256, 1, 256), (257, 1, 512), (1024, 4, 256), (1025, 4, 512), (1280, 3, 512), (512, 3, 256)
    ):  # fmt: skip
        assert server(n_ctx=n_ctx, n_parallel=slots).options.n_ctx_slot == cells, (n_ctx, slots)
    assert server(n_ctx=1024, n_parallel=4, kv_unified=True).options.n_ctx_slot == 1024
    assert server(n_ctx=1024, n_ctx_slot=100).options.n_ctx_slot == 100
    for unified, cells in ((False, 300), (True, 900)):
        law = make_law(SERVER, {"n_parallel": 3, "kv_unified": unified}, pool_tokens=900)
        assert isinstance(law, LlamaCppServer) and law.options.n_ctx_slot == cells
        assert law.pool_tokens == 900
    assert make_law(PYTHON, {}, pool_tokens=900).pool_tokens == 900
    assert make_law(PYTHON, {"n_ctx": 300}, pool_tokens=900).pool_tokens == 300


@pytest.mark.parametrize("law_id", [SERVER, PYTHON])
def test_what_fits_is_admitted(law_id: str) -> None:
    name = "n_ctx_slot" if law_id == SERVER else "n_ctx"
    for length, outputs in ((60, 4), (63, 1)):
        law = make_law(law_id, {name: 64})
        law.finish(asked, (7,) * outputs) if law.send(asked := request(length, outputs)) else None
        law.check_integrity()
    for length, outputs in ((60, 5), (64, 1)):
        with pytest.raises(LawDoesNotCover, match=rf"^{length} \+ {outputs} tokens .* 64$"):
            make_law(law_id, {name: 64}).send(request(length, outputs))


def test_layers_that_are_covered() -> None:
    for law_id in (SERVER, PYTHON):
        for groups in (["full"], ["swa:8"], ["gdn"], ["full", "swa:8"], ["gdn", "full"], ["full:1", "swa:1:8"]):
            assert not refuses(law_id, groups=groups), groups
        for groups in (["full", "full"], ["swa:8", "swa:9"], ["swa:8", "gdn"], ["full:2"], ["full", "swa:16:32"]):
            assert refuses(law_id, groups=groups), groups
    with pytest.raises(LawDoesNotCover, match=r"llama\.cpp: no law for layer groups swa:8, gdn, only"):
        server(groups=["swa:8", "gdn"])


def test_combinations_that_are_refused() -> None:
    assert not refuses(SERVER, kv_unified=True) and not refuses(SERVER, n_parallel=2)
    assert refuses(SERVER, kv_unified=True, n_parallel=2)
    assert not refuses(SERVER, kv_unified=True, n_parallel=2, n_ctx=256)
    moved = WINDOW | {"n_cache_reuse": 1}
    assert refuses(SERVER, **moved, n_ctx=256) and not refuses(SERVER, **moved, n_ctx=1024)
    assert not refuses(SERVER, **moved) and not refuses(SERVER, **moved, n_ctx=256, swa_full=True)
    assert not refuses(SERVER, **WINDOW, n_ctx=256)
    with pytest.raises(LawDoesNotCover, match=r"window's cells, 512,"):
        server(**moved, n_ctx=512)
    for names in ({"n_ctx_checkpoints": 1, "ctx_checkpoints": 2}, {"n_ctx_checkpoints": 0, "ctx_checkpoints": 32}):
        with pytest.raises(LawDoesNotCover, match=re.escape(f"one option and say {sorted(names.values())}")):
            server(**names)


# -- sizes -------------------------------------------------------------------------------------------------------------


def rooms(law_id: str, options: dict[str, Any]) -> list[int | None]:
    return [room.slots for room in make_law(law_id, options).rooms]


def test_rooms_of_an_engine() -> None:
    """Window layers: their cells, n_batch for the step, and 33 or more windows of checkpoints; states likewise."""
    slot = {"n_ctx_slot": 1024, "n_batch": 64, "n_ubatch": 32}
    assert rooms(SERVER, slot | WINDOW) == [1024, 256 + 64 + 33 * 128]
    assert rooms(SERVER, slot | WINDOW | {"swa_full": True}) == [1024, 1024]
    assert rooms(SERVER, slot | WINDOW | {"n_ctx_checkpoints": 0}) == [1024, 256 + 64 + 128]
    assert rooms(SERVER, slot | WINDOW | {"n_parallel": 2}) == [2048, 2 * (256 + 64) + 65 * 128]
    unified = slot | {"n_parallel": 2, "kv_unified": True}
    assert rooms(SERVER, unified | WINDOW) == [1024, 512 + 2 * 64 + 65 * 128]
    assert rooms(SERVER, unified | STATES) == [1024, 2 + 65]
    assert rooms(SERVER, slot | STATES) == [1024, 1 + 33]
    assert rooms(SERVER, slot | {"groups": ["full", "swa:2048"]}) == [1024, 1024 + 64 + 33 * 1024]
    assert rooms(SERVER, WINDOW) == [None, None]
    in_process = {"swa_full": False, "n_batch": 600, "n_ubatch": 64}
    assert rooms(PYTHON, WINDOW | in_process | {"n_ctx": 1000}) == [1000, 256 + 600]
    assert rooms(PYTHON, WINDOW | in_process | {"n_ctx": 300}) == [300, 256 + 300]
    assert rooms(PYTHON, WINDOW | {"n_ctx": 300}) == [300, 300]
    assert rooms(PYTHON, WINDOW) == [None, None]


def test_rooms_with_what_is_put_aside() -> None:
    slot = {"n_ctx_slot": 1024, "n_batch": 64, "n_ubatch": 32, "cache_ram_mib": 1, "state_bytes_per_token": 1024}
    assert rooms(SERVER, slot) == [1024 + 1024]
    assert rooms(SERVER, slot | {"cache_ram_mib": 2}) == [1024 + 2048]
    assert rooms(SERVER, slot | {"cache_ram_mib": -1, "n_parallel": 2}) == [2 * 1024 + 2048 + 1024]
    assert rooms(SERVER, slot | {"cache_ram_mib": -1, "n_parallel": 2, "kv_unified": True}) == [1024 + 1024 + 1024]
    states = slot | STATES | {"recurrent_state_bytes": 1 << 16}
    assert rooms(SERVER, states) == [1024 + 1024, 1 + 33 + 16]
    window = slot | WINDOW | {"window_bytes_per_token": 1024}
    assert rooms(SERVER, window) == [1024 + 1024, 256 + 64 + 33 * 128 + 1024]
    law = server(**slot | {"state_bytes_per_token": 0})
    law.admit(asked := request(5))
    with pytest.raises(LawDoesNotCover, match="n_ctx_slot, state_bytes_per_token"):
        law.slots(next(iter(law._leases)), 0, 0, len(asked.ids))


def test_what_may_be_stored_at_once() -> None:
    sizes = StateBytes(per_token=10, per_window_cell=3, recurrent=70)
    assert RamCache(1000, None, sizes).most(50, 8, 2) == Most(100, 300, 14)
    assert RamCache(1000, None, StateBytes(per_token=10, per_window_cell=5)).most(50, 8, 2) == Most(100, 200, 200)
    assert RamCache(1000, None, StateBytes(per_token=10)).most(50, 1, 2) == Most(100, 200, 200)
    assert RamCache(1000, None, StateBytes(per_token=0)).most(50, 8, 2) is None
    assert RamCache(None, 100, StateBytes(per_token=0)).most(50, 8, 2) == Most(150, 450, 300)


def test_bytes_of_a_copy() -> None:
    sizes = StateBytes(per_token=10, per_window_cell=7, recurrent=1000)
    copy = Snapshot(2, 9, np.arange(4, 10))
    assert (sizes.of(copy, partial=False), sizes.of(copy, partial=True)) == (1142, 1042)
    assert (sizes.of(Snapshot(0, 9), partial=False), sizes.of(Snapshot(0, 9), partial=True)) == (1100, 1000)
    assert StateBytes(per_token=10) == StateBytes(per_token=10, per_window_cell=0, recurrent=0, bound=False)


@pytest.mark.parametrize(
    ("options", "mib"),
    [
        ({}, 60),
        (WINDOW | {"swa_full": True}, 60),
        ({"groups": ["full", "swa:128"]}, 60 + 60 + 56),
        ({"groups": ["full", "swa:8"]}, 60 + 8 + 8),
        (STATES, 60 + 64 + 64),
        (STATES | {"n_ctx_checkpoints": 0}, 60 + 64),
        (WINDOW | {"state_bytes_per_token": 1}, 60 + 60 + 56),
        (STATES | {"recurrent_state_bytes": 1}, 60 + 64 + 64),
    ],
    ids=str,
)
def test_assumed_sizes(options: dict[str, Any], mib: int) -> None:
    """1 MiB per token and window cell, 64 MiB per state; the checkpoint lies 4 tokens before the end of 60."""
    for limit in (mib, mib - 1):
        law, first, second = server(cache_ram_mib=limit, **options), request(60), request(60, first=1000)
        law.send(first)
        law.finish(first, (1,))
        if limit == mib:
            law.finish(second, (1,)) if law.send(second) else None
            assert law.ram is not None and [each.size >> 20 for each in law.ram.stored] == [mib]
        else:
            with pytest.raises(LawDoesNotCover, match=rf"may be full \({mib} MiB at most\)"):
                law.send(second)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"state_bytes_per_token": 10}, 600),
        (WINDOW | {"swa_full": True, "state_bytes_per_token": 10}, 600),
        (WINDOW | {"state_bytes_per_token": 10, "window_bytes_per_token": 3}, 600 + 180 + 168),
        (STATES | {"state_bytes_per_token": 10, "recurrent_state_bytes": 500}, 600 + 500 + 500),
        (STATES | {"state_bytes_per_token": 0, "recurrent_state_bytes": 500}, 500 + 500),
    ],
    ids=str,
)
def test_named_sizes(options: dict[str, Any], size: int) -> None:
    law = server(cache_ram_mib=1, **options)
    for asked in (request(60), request(60, first=1000)):
        law.send(asked)
        law.finish(asked, (1,))
    assert law.ram is not None and [each.size for each in law.ram.stored] == [size]


def test_the_oldest_make_room_at_the_limit() -> None:
    """Three stored prompts of 10 tokens, 10 bytes each: 300 bytes hold them, 299 do not."""
    for limit, kept in (
        (300, [0, 100, 200]),
        (299, [100, 200]),
        (200, [100, 200]),
        (199, [200]),
        (100, [200]),
        (99, []),
    ):
        cache = RamCache(limit, None, StateBytes(per_token=10))
        for first in (0, 100, 200):
            cache.save(np.arange(first, first + 10, dtype=np.int32), (), (), Snapshot(0, 9))
            cache.trim()
        assert [each.ids[0] for each in cache.stored] == kept, limit
    for tokens, kept in ((30, [0, 100, 200]), (29, [100, 200]), (9, [])):
        cache = RamCache(None, tokens, StateBytes(per_token=0))
        for first in (0, 100, 200):
            cache.save(np.arange(first, first + 10, dtype=np.int32), (), (), Snapshot(0, 9))
            cache.trim()
        assert [each.ids[0] for each in cache.stored] == kept, tokens


def test_an_empty_ram_cache_holds_nothing_of_a_prompt() -> None:
    law = server(cache_ram_mib=1, state_bytes_per_token=1)
    asked = request(9)
    assert law.send(asked).ledger.by_cause() == {Cause.NOVEL: 9}


# -- thresholds --------------------------------------------------------------------------------------------------------


def checkpoint(length: int, owner: object) -> Checkpoint:
    return Checkpoint(np.zeros(length, np.int32), Snapshot(length - 1, length - 1), owner)


@pytest.mark.parametrize(
    ("limit", "min_step", "before", "after"),
    [
        (4, 10, [20, 25], [20, 25, 100]),
        (3, 10, [20, 25], [20, 100]),
        (3, 5, [20, 25], [20, 100]),
        (3, 4, [20, 25], [20, 25, 100]),
        (3, 4, [20, 25, 29], [20, 25, 100]),
        (3, 4, [20, 25, 30], [25, 30, 100]),
        (2, 10, [20, 25], [20, 100]),
        (1, 10, [20, 25], [100]),
        (4, 10, [20, 25, 30, 90], [20, 90, 100]),
        (5, 10, [20, 25, 30, 90], [20, 30, 90, 100]),
        (9, 10, [100, 20], [20, 100]),
        (9, 10, [120, 20], [120, 20, 100]),
    ],
)
def test_checkpoints_at_the_limit(limit: int, min_step: int, before: list[int], after: list[int]) -> None:
    """b11549: old ones go while there are `limit` - 1 or more, those within `min_step` of the one before first."""
    rule, old = CheckpointRule(limit=limit, min_step=min_step, n_batch=256, n_ubatch=64), object()
    found = rule.added([checkpoint(length, old) for length in before], checkpoint(100, object()))
    assert [each.length for each in found] == after


def test_where_steps_are_cut() -> None:
    rule = CheckpointRule(limit=1, min_step=0, n_batch=100, n_ubatch=30)
    assert [rule.batch_end(start, 200) for start in (0, 66, 99, 100, 165, 166, 167, 195, 196, 197)] == [
        100, 166, 166, 166, 166, 196, 196, 196, 200, 200,
    ]  # fmt: skip
    assert [rule.due(166, end, 200) for end in (170, 171)] == [False, True]
    assert [rule.due(start, 5, 5) for start in (0, 1)] == [False, True]
    small = CheckpointRule(limit=1, min_step=0, n_batch=20, n_ubatch=30)
    assert [small.batch_end(start, 200) for start in (160, 179, 180, 181, 196)] == [180, 180, 196, 196, 200]
    tiny = CheckpointRule(limit=1, min_step=0, n_batch=3, n_ubatch=30)
    assert [tiny.batch_end(start, 9) for start in (0, 3, 5, 6)] == [3, 6, 6, 9]
    none = CheckpointRule(limit=0, min_step=0, n_batch=100, n_ubatch=30)
    assert [none.batch_end(start, 200) for start in (0, 150)] == [100, 200] and not none.due(150, 200, 200)


def test_in_process_windows_shorter_than_the_hit_allows() -> None:
    """Of 257 tokens in 256 cells the first is gone: a hit within a window of it finds a hole, a later one does not."""
    for length, first in ((256, 0), (257, 1)):
        for hit, backed in ((1, 0), (100, 0), (249, 0), (250, None), (255, None)):
            law = python(groups=["full", "swa:250"], n_ubatch=6, swa_full=False)
            asked = request(length)
            law.send(asked)
            law.finish(asked, (1,))
            assert law._memory.first == first
            changed = TokenRequest(request_id="b", ids=(*range(hit), 9999), max_tokens=1)
            found = law.send(changed)
            assert (found.hit_len, found.backed_len) == (hit, backed if first else None), (length, hit)
            law.finish(changed, (1,))


def test_idle_slots_that_share_cells_make_room_only_where_it_is_needed() -> None:
    """Of 20 cells an idle slot holds 10: a prompt of 10 fits beside it, one of 11 does not."""
    for length, held in ((10, 10), (11, 0)):
        law = server(n_parallel=2, kv_unified=True, n_ctx_slot=20)
        first = request(10)
        law.send(first)
        law.finish(first, (1,))
        lease = law.admit(request(length, first=100))
        law.computed(lease, length)
        assert sorted(slot.length for slot in law.set.slots) == [held, length]
        law.check_integrity()
    running = law.admit(request(9, first=200))
    with pytest.raises(LawDoesNotCover, match="10 tokens do not fit beside those of the running requests in 20"):
        law.computed(running, 10)


def tokens(*values: int) -> Ids:
    return np.asarray(values, np.int32)


@pytest.mark.parametrize(
    ("held", "stored", "asked", "taken"),
    [
        ([], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 9], True),  # a quarter of it
        ([], [1, 2, 3, 4, 5, 6, 7, 8, 0], [1, 2, 9], False),
        ([1, 2, 9, 9], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 0], False),  # half of either
        ([1, 2, 9, 9], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 0], True),
        ([1, 2, 9, 9], [1, 2, 7], [1, 2, 0, 0], False),  # no more of the prompt
        ([5], [1, 2], [1, 2, 0], True),
        ([5], [6, 7], [1, 2, 0], False),
    ],
)
def test_what_is_taken_from_the_ram_cache(held: list[int], stored: list[int], asked: list[int], taken: bool) -> None:
    cache = RamCache(None, 100, StateBytes(per_token=0))
    cache.save(tokens(*stored), (), (), Snapshot(0, len(stored) - 1))
    assert (cache.better(tokens(*held), tokens(*asked)) is not None) == taken


def test_of_several_stored_prompts_the_best_in_both_shares_is_taken() -> None:
    """In the order in which they were stored, each against the best so far."""
    prompts = ([1, 2, 3, 9], [1, 2, 3, 4, 8, 8], [1, 2, 3, 4, 5, 7], [1, 2, 6])
    cache = RamCache(None, 100, StateBytes(per_token=0))
    for prompt in prompts:
        cache.save(tokens(*prompt), (), (), Snapshot(0, len(prompt) - 1))
    found = cache.better(tokens(), tokens(1, 2, 3, 4, 5, 0))
    assert found is not None and list(found.ids) == [1, 2, 3, 4, 5, 7]  # 3/4, then 5/6; 4/6 is less than 3/4


@pytest.mark.parametrize(("shared", "stored"), [(199, [400]), (200, []), (201, [])])
def test_a_slot_that_would_lose_more_than_half_is_put_aside(shared: int, stored: list[int]) -> None:
    law = server(cache_ram_mib=-1, n_ctx_slot=2048)
    for asked in (request(400), TokenRequest(request_id="b", ids=(*range(shared), 9999), max_tokens=1)):
        law.send(asked)
        law.finish(asked, (1,))
    assert law.ram is not None and [len(each.ids) for each in law.ram.stored] == stored


@pytest.mark.parametrize(("idle", "stored"), [(True, [40, 50]), (False, [50])])
def test_other_idle_slots_are_put_aside_too(idle: bool, stored: list[int]) -> None:
    law = server(n_parallel=2, cache_ram_mib=-1, n_ctx_slot=2048, cache_idle_slots=idle)
    for asked in (request(50), request(40, first=100), request(30, first=200)):
        law.send(asked)
        law.finish(asked, (1,))
    assert law.ram is not None and sorted(len(each.ids) for each in law.ram.stored) == stored


def test_what_the_laws_say_of_themselves() -> None:
    for law in (server(), python()):
        asked = request(9)
        for _ in range(2):
            law.send(asked)
            law.finish(asked, (1,))  # has no KV: the context holds just the prompt
        found = law.send(asked)
        assert law.caps_last_token == (found.hit_len < 9)
        assert not law.can_salt and law.granule == 1
    assert server().reads_chains and not server(n_cache_reuse=1).reads_chains
    assert server().reset_forgets_all and not server(n_parallel=2).reset_forgets_all
    assert server(n_parallel=2, cache_ram_mib=1).reset_forgets_all
    for options, binds in (({}, False), (WINDOW | {"swa_full": False}, True), (WINDOW | {"swa_full": True}, False)):
        assert server(**options).chunks_bind == python(**options).chunks_bind == binds
