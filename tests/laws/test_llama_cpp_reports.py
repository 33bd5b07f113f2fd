"""llama.cpp's laws against public reports and measured tables, as data.

Reports: ggml-org/llama.cpp issues and pull requests, by number. Tables: llama-server b10434, b11549 and the commit
inside llama-cpp-python 0.3.36 on tiny random models (window 128), and llama-cpp-python 0.3.36 itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from reference_engine.laws.base import Expectation, Law
from reference_engine.laws.llama_cpp.in_process import LlamaCppPython
from reference_engine.laws.llama_cpp.memory import Memory
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest
from vocabulary.ledger import Cause
from workloads.families.changed import Changed, changed
from workloads.source import TokenSource

A, B, B2 = (send.prompt([]) for send in changed(Changed(), TokenSource(0, 2048))[:3])
PLAIN, SWA, GDN = ("full",), ("full", "swa:128"), ("full", "gdn")
RAM = {"cache_ram_mib": 8192}


def fresh(source: int, count: int) -> list[int]:
    """IDs that no other source gives."""
    return list(range(source * 10_000, source * 10_000 + count))


@dataclass(frozen=True)
class Asked:
    """One request of a report."""

    ids: Sequence[int]
    output: Sequence[int] = (7,)


@dataclass(frozen=True)
class Report:
    """Requests in order on an empty server, and what each hits."""

    source: str
    groups: tuple[str, ...]
    requests: Sequence[Asked | Sequence[int]]
    hits: Sequence[int]
    options: dict[str, Any] = field(default_factory=dict)
    engine: str = "llama.cpp"


def ask(law: Law, ids: Sequence[int], output: Sequence[int] = (7,)) -> Expectation:
    request = TokenRequest(request_id="r", ids=tuple(ids), max_tokens=len(output))
    expectation = law.send(request)
    law.finish(request, output)
    law.check_integrity()
    return expectation


def hits(report: Report) -> list[int]:
    law = make_law(report.engine, {"groups": list(report.groups), **report.options})
    asked = [each if isinstance(each, Asked) else Asked(each) for each in report.requests]
    return [ask(law, each.ids, each.output).hit_len for each in asked]


U = fresh(1, 300)
L1 = [[*range(400), 1], U, [*range(400), 1]]
L2 = [Asked(range(1500), fresh(1, 400)), range(1500)]
L2_OPTIONS = {"n_ubatch": 64}
P_L3 = range(2800)
THOUSAND, GENERATED = range(1000), fresh(2, 51)
L5_A, L5_B, L5_C = fresh(0, 2048), fresh(1, 2048), fresh(2, 512)
L5_OPTIONS = {"n_cache_reuse": 128}
REPORTS = [
    Report("#10993, the RAM cache", PLAIN, L1, [0, 0, 400], RAM),
    Report("#10993, slots only", PLAIN, L1, [0, 0, 0]),
    Report("#10993, GDN", GDN, L1, [0, 0, 397], RAM),
    Report("#10993, SWA", SWA, L1, [0, 0, 396], RAM),
    Report("#10993, less than a quarter", PLAIN, [range(400), U, [*range(99), *fresh(2, 300)]], [0, 0, 0], RAM),
    Report("#10993, a quarter", PLAIN, [range(400), U, [*range(101), *fresh(2, 300)]], [0, 0, 101], RAM),
    Report("#14157, checkpoint", SWA, L2, [0, 1495], L2_OPTIONS),
    Report("#14157, none", SWA, L2, [0, 0], L2_OPTIONS | {"ctx_checkpoints": 0}),
    Report("#14157, whole window cache", SWA, L2, [0, 1499], L2_OPTIONS | {"swa_full": True}),
    Report("#14157, short generation", SWA, [range(1500), range(1500)], [0, 1499], L2_OPTIONS),
    Report(
        "#24055, GDN",
        GDN,
        [P_L3, [*range(2790), *fresh(1, 20)], P_L3, [*range(2797), *fresh(2, 20)]],
        [0, 2284, 2294, 2796],
    ),
    Report("#24055, repeat", GDN, [THOUSAND, THOUSAND], [0, 996]),
    Report(
        "#24055, next turn",
        GDN,
        [Asked(THOUSAND, GENERATED[:50]), [*THOUSAND, *GENERATED[:50], *fresh(3, 20)]],
        [0, 1049],
    ),
    Report("#24055, sibling", GDN, [[*THOUSAND, *fresh(1, 300)], [*THOUSAND, *fresh(2, 300)]], [0, 784]),
    Report("#24055, its own beginning", GDN, [range(1300), THOUSAND], [0, 784]),
    *(
        Report(
            f"#23589, n_ubatch {u}", GDN, [range(3000), [*range(2995), *U[:30]]], [0, 3025 - missed], {"n_ubatch": u}
        )
        for u, missed in ((64, 93), (512, 541), (1024, 1053))
    ),
    Report("#23589, at the checkpoint", GDN, [range(3000), [*range(2996), *U[:30]]], [0, 2996]),
    Report(
        "#23589, capped by n_batch",
        GDN,
        [range(6000), [*range(5995), *fresh(1, 30)]],
        [0, 6025 - 4121],
        {"n_batch": 4096, "n_ubatch": 4096},
    ),
    Report("#18497, deletion", PLAIN, [L5_A + L5_C + L5_B, L5_A + L5_B], [0, 4095], L5_OPTIONS),
    Report("#18497, without moving", PLAIN, [L5_A + L5_C + L5_B, L5_A + L5_B], [0, 2048]),
    Report("#18497, deletion, GDN", GDN, [L5_A + L5_C + L5_B, L5_A + L5_B], [0, 0], L5_OPTIONS),
    Report("#18497, deletion, SWA", SWA, [L5_A + L5_C + L5_B, L5_A + L5_B], [0, 0], L5_OPTIONS),
    Report("#18497, insertion", PLAIN, [L5_A + L5_B, L5_A + L5_C + L5_B], [0, 2048], L5_OPTIONS),
    Report("#18497, insertion, GDN", GDN, [L5_A + L5_B, L5_A + L5_C + L5_B], [0, 0], L5_OPTIONS),
    Report("#18497, insertion, SWA", SWA, [L5_A + L5_B, L5_A + L5_C + L5_B], [0, 0], L5_OPTIONS),
    Report("#18497, head dropped", PLAIN, [L5_A + L5_B, L5_B], [0, 2047], L5_OPTIONS),
    Report(
        "#28139, not pinned",
        PLAIN,
        [range(290), U[:290], range(290)],
        [0, 0, 289],
        {"n_parallel": 2, "cache_ram_mib": 4096},
    ),
]

X, M, Y, T, T2 = fresh(0, 300), fresh(1, 100), fresh(2, 600), fresh(3, 10), fresh(4, 12)
P, Q = X + M + Y + T, X + Y + T2
SHIFT = {"n_cache_reuse": 256}
SEVEN = [A, A, B, B2, A]
THIRTY = fresh(3, 30)
TURN = [Asked(A, THIRTY), [*A, *THIRTY, *fresh(4, 21)]]
CUT = [A, [*A[:600], *fresh(4, 9)]]
SMALL = {"n_ubatch": 128, "n_batch": 512}
TABLES = [
    Report("one slot, plain", PLAIN, SEVEN, [0, 1037, 1026, 17, 17]),
    Report("one slot, SWA", SWA, SEVEN, [0, 1037, 1026, 0, 0]),
    Report("one slot, SWA kept whole", SWA, SEVEN, [0, 1037, 1026, 17, 17], {"swa_full": True}),
    Report("one slot, GDN", GDN, SEVEN, [0, 1034, 522, 0, 0]),
    Report("one slot, GDN, no checkpoints", GDN, SEVEN, [0, 0, 0, 0, 0], {"n_ctx_checkpoints": 0}),
    *(Report(f"next turn, {groups}", groups, TURN, [0, 1067]) for groups in (PLAIN, SWA, GDN)),
    Report("next turn, no checkpoints", GDN, TURN, [0, 1067], {"n_ctx_checkpoints": 0}),
    Report("cut, plain", PLAIN, CUT, [0, 600]),
    Report("cut, SWA", SWA, CUT, [0, 600]),
    Report("cut, SWA, small batches", SWA, CUT, [0, 0], SMALL),
    Report("cut, GDN", GDN, CUT, [0, 522]),
    Report("cut, GDN, small batches", GDN, CUT, [0, 0], SMALL | {"checkpoint_min_step": 64}),
    Report("window 512, short prefix", ("full", "swa:512"), [A, [*A[:300], *T]], [0, 0]),
    Report("chunks, off", PLAIN, [P, Q], [0, 300]),
    Report("chunks, deletion", PLAIN, [P, Q], [0, 900], SHIFT),
    Report("chunks, insertion", PLAIN, [Q, P], [0, 300], SHIFT),
    Report("chunks, replacement", PLAIN, [A, B2], [0, 17], SHIFT),
    Report("chunks, head removed", PLAIN, [P, Y + T2], [0, 600], SHIFT),
    Report("chunks, head replaced", PLAIN, [P, fresh(5, 300) + Y + T2], [0, 0], SHIFT),
    Report("chunks, across a border", PLAIN, [P, X[:280] + Y[100:] + T2], [0, 780], SHIFT),
    Report("chunks, block to the front", PLAIN, [P, Y + X + T2], [0, 600], SHIFT),
    Report("RAM cache, back again", PLAIN, [A, B2, A], [0, 17, 1037], RAM),
    Report("RAM cache, back again, SWA", SWA, [A, B2, A], [0, 0, 1033], RAM),
    Report("RAM cache, back again, GDN", GDN, [A, B2, A], [0, 0, 1034], RAM),
    Report("RAM cache, not consulted", PLAIN, [A, [*A[:300], *fresh(4, 9)], A], [0, 300, 300], RAM),
]


@pytest.mark.parametrize("report", REPORTS + TABLES, ids=lambda report: report.source)
def test_hits(report: Report) -> None:
    assert hits(report) == list(report.hits)


SHARED = {"n_parallel": 4, "kv_unified": True, "n_ctx": 8192}


@pytest.mark.parametrize(
    ("groups", "options", "back"),
    [
        *((groups, {"n_parallel": 4}, 0) for groups in (PLAIN, SWA, GDN)),
        *((groups, SHARED, 0) for groups in (PLAIN, GDN)),
        *((groups, RAM, 0) for groups in (PLAIN, GDN)),
        (SWA, RAM, 6),
    ],
    ids=str,
)
def test_three_conversations(groups: tuple[str, ...], options: dict[str, Any], back: int) -> None:
    """Turns continue what was generated: full hits, by a slot per conversation or through the RAM cache.

    Of a window layer the RAM cache keeps just the window, which is one position short of what a resumption at its end
    asks for: there it falls back to the checkpoint before the last prompt's end.
    """
    law = make_law("llama.cpp", {"groups": list(groups), **options})
    talks = [fresh(source, 580) for source in range(3)]
    for length, hit in ((460, 0), (520, 461 - back), (580, 521 - back)):
        for talk in talks:
            assert ask(law, talk[:length], (*talk[length : length + 1], 7)).hit_len == hit


@pytest.mark.parametrize(
    ("groups", "cut"),
    [(PLAIN, [1026, 17, 1037, 1067, 600, 300]), (SWA, [1026, 17, 1037, 1067, 600, 300]), (GDN, [0, 0, 0, 1067, 0, 0])],
    ids=str,
)
def test_in_process_table(groups: tuple[str, ...], cut: list[int]) -> None:
    """llama-cpp-python 0.3.36 with its default, window layers kept whole."""
    law = make_law("llama-cpp-python@0.3", {"groups": list(groups)})
    assert [ask(law, ids).hit_len for ids in (A, A)] == [0, 1038]
    found = [ask(law, B).hit_len, ask(law, B2).hit_len]
    ask(law, A, THIRTY)
    found.append(ask(law, A, THIRTY).hit_len)
    found.append(ask(law, [*A, *THIRTY, *fresh(4, 20)]).hit_len)
    for following in ([*A[:600], *fresh(4, 9)], A[:300] + A[400:]):
        law.reset()
        ask(law, A)
        found.append(ask(law, following).hit_len)
    assert found == cut


def first_held(law: Law) -> int | None:
    assert isinstance(law, LlamaCppPython) and isinstance(law._memory, Memory)
    return law._memory.first


@pytest.mark.parametrize(
    ("n_ubatch", "held_from", "cut", "backed"),
    [(512, 270, 300, 0), (512, 270, 600, None), (128, 782, 600, 0), (128, 782, 300, 0), (128, 782, 17, 0)],
)
def test_in_process_window_with_a_hole(n_ubatch: int, held_from: int, cut: int, backed: int | None) -> None:
    """The defect of 0.3.36 with swa_full = False, by the first position that its memory reported."""
    law = make_law("llama-cpp-python@0.3", {"groups": list(SWA), "n_ubatch": n_ubatch, "swa_full": False})
    ask(law, A)
    assert first_held(law) == held_from
    expected = ask(law, [*A[:cut], *fresh(4, 9)])
    assert (expected.hit_len, expected.position_start, expected.backed_len) == (cut, cut, backed)
    assert expected.per_group == {"full": cut, "swa:128": cut if backed is None else backed}


def test_moved_chunks_stay_approximate() -> None:
    law = make_law("llama.cpp", SHIFT)
    ask(law, P)
    moved = ask(law, Q)
    assert (moved.hit_len, moved.approximate_len) == (900, 600)
    assert moved.ledger.by_cause() == {Cause.REUSED: 900, Cause.NOVEL: 12}
    again = ask(law, Q)
    assert (again.hit_len, again.approximate_len) == (911, 600)
    assert ask(law, X).approximate_len == 0


@pytest.mark.parametrize("groups", [SWA, GDN], ids=str)
def test_one_token_checkpoint_outlives_its_prompt(groups: tuple[str, ...]) -> None:
    """b11549 keeps a checkpoint of one token although the next prompt begins with another one, and resumes from it."""
    law = make_law("llama.cpp", {"groups": list(groups), "n_ubatch": 64})
    first, second = fresh(0, 5), fresh(1, 600)
    ask(law, first)  # its checkpoint lies 4 tokens before the end
    assert ask(law, second).hit_len == 0
    stale = ask(law, second[:100] + T)
    assert (stale.hit_len, stale.backed_len) == (1, 0)
    law.reset()
    ask(law, second)
    clean = ask(law, second[:100] + T)
    assert (clean.hit_len, clean.backed_len) == (0, None)


def test_causes() -> None:
    gdn = make_law("llama.cpp", {"groups": list(GDN)})
    ask(gdn, A)
    repeat = ask(gdn, A)
    assert repeat.ledger.by_cause() == {Cause.REUSED: 1034, Cause.CHECKPOINT: 3, Cause.LAST_TOKEN: 1}
    assert repeat.per_group == {"full": 1037, "gdn": 1034}
    assert ask(gdn, B2).ledger.by_cause() == {Cause.NO_STATE: 17, Cause.NOVEL: 1021}
    swa = make_law("llama.cpp", {"groups": list(SWA)})
    ask(swa, A)
    assert ask(swa, B2).ledger.by_cause() == {Cause.WINDOW: 17, Cause.NOVEL: 1021}
    ram = make_law("llama.cpp", RAM)
    for ids in (range(400), U):
        ask(ram, ids)
    little = ask(ram, [*range(99), *T])
    assert little.ledger.by_cause() == {Cause.MIN_REUSE: 99, Cause.NOVEL: 10}
    kept = make_law("llama.cpp", RAM)
    for ids in (A, [*A[:300], *T]):
        ask(kept, ids)
    # All of A lies in the RAM cache, which was not asked: the slot keeps most of what it holds.
    assert ask(kept, A).ledger.by_cause() == {Cause.REUSED: 300, Cause.SLOT: 737, Cause.LAST_TOKEN: 1}
