"""SGLang's own scheduler and caches against measured tables and against the law, request by request.

One worker serves all of it. Numbers are those of tests/laws/test_sglang_hybrids.py, measured before there was one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapters.base import EngineSpec
from adapters.lookup import open_lookup
from adapters.registry import adapter_for
from adapters.sglang_lookup.lookup import SglangLookup
from adapters.sglang_lookup.options import SglangLookupOptions
from reference_engine.laws.base import PoolExhausted
from reference_engine.laws.registry import make_law
from vocabulary.engine import Feature, Fidelity, Media, Mode, Reply, TokenRequest
from vocabulary.errors import EngineFailed, RequestRefused, UsageError

pytestmark = pytest.mark.live("sglang")
X = list(range(100, 25100))
A, B = X[:1026] + [90] * 12, X[:1026] + [91] * 12
B17 = [*B[:17], 99, *B[18:]]
_ids = count()


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangLookup]:
    started = open_lookup("sglang@0.5.23", {"groups": ["full:16"]}, tmp_path_factory.mktemp("sglang-lookup"))
    assert isinstance(started, SglangLookup)
    with contextlib.closing(started):
        yield started


def ask(lookup: SglangLookup, ids: Sequence[int], outputs: Sequence[int] = (7,), **more: Any) -> Reply:
    request = TokenRequest(request_id=f"r{next(_ids)}", ids=tuple(ids), max_tokens=max(1, len(outputs)), **more)
    reply = lookup.send(request, outputs)
    assert reply.prompt_len == len(ids)
    assert reply.output_ids == tuple(outputs)
    assert reply.steps is not None
    assert reply.steps[0][0] == reply.position_start == reply.hit_len == reply.backed_len
    assert reply.steps[-1][1] == len(ids)
    return reply


def hits(lookup: SglangLookup, *prompts: Sequence[int]) -> list[int | None]:
    assert lookup.reset()
    return [ask(lookup, prompt).hit_len for prompt in prompts]


def prefixes(*lengths: int) -> list[list[int]]:
    return [X[:length] for length in lengths]


@pytest.mark.parametrize(
    ("options", "sends", "expected"),
    [
        ({"page_size": 1}, [A, A, B, B17, A], [0, 1037, 1026, 17, 1037]),
        ({"page_size": 16}, [A, A, B, B17, A], [0, 1024, 1024, 16, 1024]),
        ({"page_size": 64}, [A, A, B, B17, A], [0, 1024, 1024, 0, 1024]),
        (
            {"page_size": 1, "speculative_algorithm": "EAGLE"},
            [X[:1024] + [1] * 9, X[:1024] + [2] * 9, X[:257], X[:257]],
            [0, 1023, 255, 255],
        ),
        (
            {"groups": ["full", "gdn"], "chunked_prefill_size": 256},
            prefixes(2000, 1999, 1500, 1024, 1000, 512, 130, 2000),
            [0, 1792, 1280, 768, 768, 256, 0, 1999],
        ),
        (
            {"groups": ["full", "gdn"], "page_size": 16, "chunked_prefill_size": 208},
            prefixes(2000, 1999, 1500, 1024, 1000, 512, 130, 100, 2000),
            [0, 1856, 1440, 816, 816, 400, 0, 0, 1984],
        ),
        (
            {"groups": ["full", "swa:128"], "page_size": 16, "chunked_prefill_size": 256, "max_total_tokens": 32768},
            prefixes(2000, 1999, 1900, 1500, 1024, 512, 130, 100),
            [0, 1984, 1888, 1280, 1008, 496, 0, 96],
        ),
    ],
)
def test_measured_tables(
    lookup: SglangLookup, options: dict[str, Any], sends: list[list[int]], expected: list[int]
) -> None:
    lookup.reconfigure(options)
    assert lookup.facts.fidelity is Fidelity.LOOKUP
    assert lookup.facts.law == "sglang@0.5.23"
    assert any("pairs of tokens" in note for note in lookup.facts.notes) is ("speculative_algorithm" in options)
    assert hits(lookup, *sends) == expected
    assert hits(lookup, *sends) == expected


def test_features_of_a_request(lookup: SglangLookup) -> None:
    lookup.reconfigure({"groups": ["full:16"], "logprob_start_len": 100})
    assert hits(lookup, X[:500]) == [0]
    assert ask(lookup, X[:500], namespace="red").hit_len == 0
    assert ask(lookup, X[:500], namespace="red").hit_len == 496
    assert ask(lookup, X[:500], features=frozenset({Feature.PROMPT_LOGPROBS})).hit_len == 96
    assert ask(lookup, X[:500], features=frozenset({Feature.LOGPROB})).hit_len == 496
    chat = ask(lookup, X[:500], X[500:520])
    assert chat.output_ids == tuple(X[500:520])
    assert ask(lookup, X[:530]).hit_len == 512
    with pytest.raises(RequestRefused, match="skip_lookup"):
        ask(lookup, X[:500], features=frozenset({Feature.SKIP_LOOKUP}))
    with pytest.raises(RequestRefused, match="exceed the"):
        ask(lookup, [5] * 300_000)
    with pytest.raises(RequestRefused, match="encoder"):
        ask(lookup, X[:500], media=(Media("a", 10, 20),))
    assert ask(lookup, X[:500]).hit_len == 496


def test_queued_together(lookup: SglangLookup) -> None:
    """Equal prompts in one step share nothing; with chunks the others wait and find the first one's pages."""
    prompts = [TokenRequest(request_id=f"t{i}", ids=tuple(X[:500])) for i in range(3)]
    lookup.reconfigure({"groups": ["full:16"]})
    assert [reply.hit_len for reply in lookup.send_together(prompts)] == [0, 0, 0]
    lookup.reconfigure({"groups": ["full:16"], "chunked_prefill_size": 128})
    assert [reply.hit_len for reply in lookup.send_together(prompts)] == [0, 496, 496]
    refused = TokenRequest(request_id="no", ids=(1,), features=frozenset({Feature.SKIP_LOOKUP}))
    with pytest.raises(RequestRefused, match="skip_lookup"):
        lookup.send_together([TokenRequest(request_id="first", ids=tuple(X[900:1400])), refused])
    assert [ask(lookup, X[900:1400]).hit_len for _ in range(2)] == [0, 496]


def test_a_request_that_would_wait_for_ever(lookup: SglangLookup) -> None:
    lookup.reconfigure({"groups": ["full:64"], "max_total_tokens": 1024})
    assert hits(lookup, X[:600], X[:600]) == [0, 576]
    with pytest.raises(RequestRefused, match="wait for ever"):
        ask(lookup, X[1000:2010])
    assert ask(lookup, X[:600]).hit_len == 576


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"groups": ["full", "swa:64", "gdn"]}, "there are full, full with swa, full with gdn"),
        ({"groups": ["full:16", "gdn:64"]}, "SGLang has one for all layers"),
        ({"page_sise": 16}, "did you mean 'page_size'"),
        ({"groups": ["full", "gdn"], "page_size": 16, "mamba_radix_cache_strategy": "no_buffer"}, "refuses"),
    ],
)
def test_refused_configurations(lookup: SglangLookup, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        lookup.reconfigure(options)
    lookup.reconfigure({"groups": ["full:16"]})
    assert hits(lookup, X[:100], X[:100]) == [0, 96]


def test_the_scheduler_dies_and_the_worker_lives(lookup: SglangLookup) -> None:
    lookup.reconfigure({"groups": ["full:16"]})
    parent = lookup._worker._process.child.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
    for pid in children:
        os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(EngineFailed, match="killed by signal 9"):
        ask(lookup, X[:100])
    lookup.reconfigure({"groups": ["full:16"]})
    assert hits(lookup, X[:100], X[:100]) == [0, 96]


@pytest.mark.parametrize(
    "options",
    [
        {"groups": ["full"], "max_total_tokens": 1500},
        {"groups": ["full:16"], "chunked_prefill_size": 120},
        {"groups": ["full:16"], "speculative_algorithm": "EAGLE"},
        {"groups": ["full", "swa:50"], "page_size": 16, "chunked_prefill_size": 64, "max_total_tokens": 2048},
        {"groups": ["full", "gdn"], "chunked_prefill_size": 100, "max_mamba_cache_size": 10},
        {"groups": ["full", "gdn"], "page_size": 16, "chunked_prefill_size": 128, "max_mamba_cache_size": 10},
    ],
)
def test_the_law_says_the_same(lookup: SglangLookup, options: dict[str, Any]) -> None:
    """Hit, start and every prefill step of random sessions that branch, grow and fill small pools."""
    lookup.reconfigure(options)
    assert lookup.facts.law is not None
    law = make_law(lookup.facts.law, lookup.facts.law_options)
    rng, seen, reused = random.Random(3), [X[:300]], 0
    for _ in range(60):
        stem = rng.choice(seen)
        kept = rng.choice(
            [len(stem), rng.randrange(1, len(stem) + 1), 16 * rng.randrange(1, 20) + rng.randrange(-1, 3)]
        )
        ids = (stem[:kept] + [rng.randrange(50, 90) for _ in range(rng.randrange(0, 150))])[:500]
        outputs = [rng.randrange(50, 90) for _ in range(rng.choice([1, 1, 2, 20]))]
        seen = [*seen[-20:], (ids + outputs)[:480]]
        request = TokenRequest(request_id=f"r{next(_ids)}", ids=tuple(ids), max_tokens=len(outputs))
        try:
            lease = law.admit(request)
        except PoolExhausted:
            continue
        steps = []
        while lease.computed_len < len(ids):
            steps.append((lease.computed_len, law.chunk_end(lease)))
            law.computed(lease, steps[-1][1])
        law._sent[request.request_id] = lease
        law.finish(request, outputs)
        law.check_integrity()
        reply = ask(lookup, ids, outputs)
        assert (lease.expectation.hit_len, tuple(steps)) == (reply.hit_len, reply.steps)
        reused += lease.expectation.hit_len
    assert reused, "nothing was ever reused: the sessions tested nothing"


def test_the_adapter_of_experiments() -> None:
    adapter = adapter_for("sglang-lookup")
    options = SglangLookupOptions(groups=("full", "gdn"), page_size=16)
    spec = EngineSpec(engine="sglang-lookup", version="0.5.23", mode=Mode.WORKER, options=options)
    adapter.check(spec)
    law, law_options = adapter.law_for(spec, {"page_size": 16, "max_mamba_cache_size": 64}, ("full", "gdn"))
    assert (law, law_options["max_mamba_cache_size"]) == ("sglang@0.5.23", 64)
