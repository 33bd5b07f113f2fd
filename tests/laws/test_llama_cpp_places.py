"""An engine behind llama.cpp's laws finds in every place what it has to read there, and no place is lost."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from reference_engine.laws.base import Expectation, Law
from reference_engine.laws.registry import make_law
from tests.laws.tagged_memory import TaggedMemory
from vocabulary.engine import TokenRequest

REQUESTS = int(os.environ.get("HITPARITY_PLACES", "30"))
"""Per case."""
SLOT = {"n_ctx_slot": 512, "n_batch": 96, "n_ubatch": 32, "checkpoint_min_step": 16}
WINDOW: dict[str, Any] = SLOT | {"groups": ["full", "swa:24"], "n_ctx_checkpoints": 3}
STATES: dict[str, Any] = SLOT | {"groups": ["full", "gdn"], "n_ctx_checkpoints": 3}
WHOLE: dict[str, Any] = SLOT | {"groups": ["full"]}
RAM = {"n_parallel": 2, "cache_ram_mib": 1, "state_bytes_per_token": 1024}
"""Room for 1,024 tokens put aside."""
SERVER: list[dict[str, Any]] = [
    WHOLE,
    WHOLE | {"n_parallel": 3},
    WHOLE | {"n_cache_reuse": 8},
    WHOLE | {"n_cache_reuse": 8} | RAM,
    WHOLE | {"groups": ["swa:24", "full"], "swa_full": True, "n_cache_reuse": 8},
    WHOLE | RAM,
    WHOLE | {"n_parallel": 2, "cache_ram_mib": -1},
    WHOLE | {"n_parallel": 3, "kv_unified": True},
    WHOLE | {"n_cache_reuse": 8, "kv_unified": True} | RAM,
    WINDOW,
    WINDOW | {"n_ctx_checkpoints": 0},
    WINDOW | {"n_parallel": 3, "n_ctx_checkpoints": 1, "n_batch": 300},
    WINDOW | {"groups": ["swa:100"], "n_batch": 40, "n_ubatch": 40},
    WINDOW | {"window_bytes_per_token": 1024} | RAM,
    WINDOW | {"n_parallel": 2, "cache_ram_mib": -1, "kv_unified": True},
    WINDOW | {"n_parallel": 3, "kv_unified": True, "n_ubatch": 96},
    STATES,
    STATES | {"n_ctx_checkpoints": 0},
    STATES | {"n_parallel": 3, "n_ctx_checkpoints": 1, "n_batch": 300},
    STATES | {"groups": ["gdn"], "checkpoint_min_step": 0, "n_ubatch": 4},
    STATES | {"recurrent_state_bytes": 1 << 16} | RAM,
    STATES | {"n_parallel": 2, "cache_ram_mib": -1, "kv_unified": True},
    STATES | {"n_parallel": 3, "kv_unified": True},
]
IN_PROCESS: list[dict[str, Any]] = [
    {"groups": ["full"]},
    {"groups": ["full", "swa:24"], "swa_full": True},
    {"groups": ["full", "swa:24"], "swa_full": False, "n_batch": 96, "n_ubatch": 32},
    {"groups": ["full", "gdn"], "n_batch": 96},
]
CASES = [
    *(("llama.cpp", options) for options in SERVER),
    *(("llama-cpp-python@0.3", options | {"n_ctx": 512}) for options in IN_PROCESS),
]


def followed(law_id: str, options: dict[str, Any]) -> tuple[Law, TaggedMemory]:
    law = make_law(law_id, options)
    return law, TaggedMemory(law)


@pytest.mark.parametrize(("law_id", "options"), CASES, ids=str)
def test_every_place_holds_what_is_read(law_id: str, options: dict[str, Any]) -> None:
    _, memory = followed(law_id, options)
    hits = [memory.serve(request, output).hit_len for request, output in asked(random.Random(2), 400)]
    rewinds = "gdn" not in options["groups"] or options.get("n_ctx_checkpoints")
    assert sum(hit > 1 for hit in hits) > REQUESTS // 20 or not rewinds


@pytest.mark.parametrize("options", [each for each in SERVER if each.get("n_parallel", 1) > 1], ids=str)
def test_requests_that_take_turns(options: dict[str, Any]) -> None:
    law, memory = followed("llama.cpp", options)
    rng, running = random.Random(3), list[Iterator[Expectation]]()
    for request, output in asked(rng, 120):
        while len(running) == options["n_parallel"]:
            go_on(running, rng)
        running.append(memory.steps(request, output))
        next(running[-1])
        for _ in range(rng.randrange(12)):
            go_on(running, rng)
        law.check_integrity()


def test_a_checkpoint_taken_where_another_was_restored_leaves_a_hole() -> None:
    """Its copy holds one position less than a window, as the cut at the resume point had taken the newest."""
    _, memory = followed("llama.cpp", WINDOW)
    trunk, answers = list(range(62)), list[tuple[int, int | None]]()
    for number in range(3):
        ids = (*trunk, *[1000 + number] * (3, 30, 3)[number])
        request = TokenRequest(request_id=str(number), ids=ids, max_tokens=300)
        expectation = memory.serve(request, [7 + number] * 300)
        answers.append((expectation.hit_len, expectation.backed_len))
    assert answers == [(0, None), (60, None), (59, 0)]


def go_on(running: list[Iterator[Expectation]], rng: random.Random) -> None:
    """One step of one of them."""
    if running and next(chosen := rng.choice(running), None) is None:
        running.remove(chosen)


def asked(rng: random.Random, longest: int) -> Iterator[tuple[TokenRequest, list[int]]]:
    """Prompts that extend, cut and edit earlier ones, or leave out a part, and their outputs.

    All begin with one token: llama.cpp restores a checkpoint of a wrong first token and then forgets that it did.
    """
    known = [[0]]
    for number in range(REQUESTS):
        ids = list(rng.choice(known))
        ids = ids[: rng.choice([len(ids), rng.randrange(len(ids)) + 1])]
        if rng.random() < 0.3:
            start = rng.randrange(1, len(ids) + 1)
            del ids[start : start + rng.randrange(30)]
        ids += [rng.randrange(1000) for _ in range(rng.choice([0, 0, 1, 4, 15, 33, 64, 100]))]
        ids = ids[:longest]
        output = [rng.randrange(1000) for _ in range(rng.choice([1, 1, 2, 20, 60]))][: longest // 4]
        known = [*known[-12:], ids + output[:-1]]
        yield TokenRequest(request_id=str(number), ids=tuple(ids), max_tokens=len(output)), output
