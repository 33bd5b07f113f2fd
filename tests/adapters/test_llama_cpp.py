"""llama-server, really running tiny models."""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from adapters.base import EngineSpec
from adapters.llama_cpp.adapter import LlamaCppAdapter
from adapters.llama_cpp.engine import LlamaCppEngine
from adapters.llama_cpp.launch import wheel_python
from adapters.llama_cpp.options import LlamaCppOptions
from checkpoints import Checkpoint
from reference_engine.laws.registry import make_law
from vocabulary.engine import Engine, Feature, Mode, Reply, TokenRequest
from vocabulary.errors import EngineFailed, EngineUnavailable, LawDoesNotCover, RequestRefused, UsageError
from workloads.families.changed import Changed, changed
from workloads.source import TokenSource

pytestmark = pytest.mark.live("llama.cpp")
A, B, B2 = (send.prompt([]) for send in changed(Changed(), TokenSource(0, 128))[:3])
Specs = Callable[..., EngineSpec]
Models = Callable[[str], Checkpoint]
SYSTEM = list(range(1, 121)) * 5


@contextmanager
def started(spec: EngineSpec, model: Checkpoint, folder: Path) -> Iterator[Engine]:
    engine = LlamaCppAdapter().start(spec, model, folder)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def one_slot(engine_spec: Specs, checkpoint: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("one")
    with started(engine_spec("llama.cpp", n_threads=1), checkpoint("tiny-qwen3"), folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def four_slots(engine_spec: Specs, checkpoint: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("four")
    spec = engine_spec("llama.cpp", n_threads=1, n_parallel=4)
    with started(spec, checkpoint("tiny-qwen3"), folder) as engine:
        yield engine


def ask(engine: Engine, ids: list[int], max_tokens: int = 1, **fields: object) -> Reply:
    return engine.send(TokenRequest(request_id="r", ids=tuple(ids), max_tokens=max_tokens, **fields))


def hits(engine: Engine, *prompts: list[int]) -> list[int | None]:
    replies = [ask(engine, prompt) for prompt in prompts]
    assert [reply.position_start for reply in replies] == [reply.hit_len for reply in replies]
    return [reply.hit_len for reply in replies]


def test_founding_comparison(one_slot: Engine) -> None:
    assert one_slot.reset()
    assert hits(one_slot, A, B, B2, A, A) == [0, 1026, 17, 17, 1037]
    assert one_slot.reset()
    reply = ask(one_slot, A)
    assert (reply.hit_len, reply.steps) == (0, ((0, 1038),))
    assert reply.position_source.startswith("engine.log")


def test_facts(one_slot: Engine, four_slots: Engine) -> None:
    facts = one_slot.facts
    assert (facts.version, facts.dtype, facts.groups, facts.granule) == ("2026.10.11549", "float32", ("full",), 1)
    assert (facts.context_len, facts.vocab_size, facts.law) == (8192, 2048, "llama.cpp")
    assert facts.options["flash_attn"] == "off" and facts.options["n_ubatch"] == 512
    assert four_slots.facts.context_len == 2048
    law = four_slots.facts.law_options
    assert {name: law[name] for name in ("groups", "n_parallel", "slot_prompt_similarity", "n_ctx_slot")} == {
        "groups": ["full"],
        "n_parallel": 4,
        "slot_prompt_similarity": 0.1,
        "n_ctx_slot": 2048,
    }


def test_long_prompt_shows_its_steps(one_slot: Engine) -> None:
    one_slot.reset()
    assert ask(one_slot, (A * 3)[:3000]).steps == ((0, 2048), (2048, 3000))


def test_first_logprob_leaves_the_hit_alone_and_warm_equals_cold(one_slot: Engine) -> None:
    one_slot.reset()
    cold = ask(one_slot, A, features=frozenset({Feature.LOGPROB}))
    warm = ask(one_slot, A, features=frozenset({Feature.LOGPROB}))
    assert (cold.hit_len, warm.hit_len) == (0, 1037)
    assert warm.output_ids == cold.output_ids
    assert cold.first_logprob is not None and cold.first_logprob < 0
    assert warm.first_logprob == pytest.approx(cold.first_logprob, abs=1e-5)
    assert ask(one_slot, A).first_logprob is None


def test_next_turn_reuses_all_but_the_last_generated_token(one_slot: Engine) -> None:
    one_slot.reset()
    output = ask(one_slot, A, max_tokens=30).output_ids
    assert len(output) == 30
    assert hits(one_slot, [*A, *output, 5, 6, 7]) == [1038 + 29]


@pytest.mark.parametrize(
    ("ids", "max_tokens", "why"),
    [
        ([], 1, "empty"),
        ([2048], 1, "invalid tokens"),
        ([-1], 1, "invalid tokens"),
        ([1] * 8190, 3, "do not fit a slot"),
    ],
)
def test_refusals_leave_the_server_and_its_cache_alone(
    one_slot: Engine, ids: list[int], max_tokens: int, why: str
) -> None:
    ask(one_slot, A)
    with pytest.raises(RequestRefused, match=why):
        ask(one_slot, ids, max_tokens)
    assert hits(one_slot, A) == [1037]


def test_changed_prompt_goes_to_an_empty_slot(four_slots: Engine) -> None:
    assert four_slots.reset()
    replies = [ask(four_slots, ids) for ids in (A, B, B2, A, B2)]
    assert [reply.hit_len for reply in replies] == [0, 1026, 0, 1026, 1037]
    slots = [reply.native["id_slot"] for reply in replies]
    assert slots[0] == slots[1] == slots[3] != slots[2] == slots[4]


def test_requests_together_know_their_own_positions(four_slots: Engine) -> None:
    four_slots.reset()
    assert hits(four_slots, *([*SYSTEM, user] for user in range(4))) == [0, 600, 600, 600]
    together = [
        TokenRequest(request_id=str(user), ids=(*SYSTEM, *[user] * user), max_tokens=3) for user in range(10, 14)
    ]
    replies = four_slots.send_together(together)
    assert [reply.request_id for reply in replies] == ["10", "11", "12", "13"]
    # One slot holds the prefix; a request that comes late on a busy machine may find it in another slot too.
    assert {reply.hit_len for reply in replies} <= {0, 600}
    assert any(reply.hit_len == 600 for reply in replies)
    for request, reply in zip(together, replies, strict=True):
        assert reply.position_start == reply.hit_len
        assert reply.steps is not None and reply.steps[-1][1] == request.prompt_len


def test_ends_seen_in_another_order_do_not_swap_positions(one_slot: Engine) -> None:
    """Of two requests on one slot, the first one's end is read late, as by a thread that had to wait for a core."""
    assert isinstance(one_slot, LlamaCppEngine) and one_slot.reset()
    asked = [TokenRequest(request_id=str(user), ids=(*SYSTEM, user), max_tokens=1) for user in (1, 2)]
    first, second = (one_slot._exchange_alone(request) for request in asked)
    late = replace(first, events=[(read_ns + 10**9, event) for read_ns, event in first.events])
    replies = one_slot._located([late, second])
    assert [(reply.hit_len, reply.position_start) for reply in replies] == [(0, 0), (600, 600)]


def test_random_requests_follow_the_law(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    """Short requests over shared stems, with outputs, every way to choose a slot, and a reset in between."""
    draw = random.Random(5)
    stems = [[draw.randrange(128) for _ in range(90)] for _ in range(6)]
    # A fresh server: equal slots are told apart by number, and the order of use outlives a reset.
    spec = engine_spec("llama.cpp", n_threads=1, n_parallel=4)
    with started(spec, checkpoint("tiny-qwen3"), tmp_path) as engine:
        law = make_law(engine.facts.law or "", engine.facts.law_options)
        for number in range(120):
            if number == 80:
                assert engine.reset()
                law.reset()
            stem = draw.choice(stems)[: draw.choice((4, 30, 60, 90))]
            ids = (*stem, *(draw.randrange(128) for _ in range(draw.choice((0, 1, 20, 70)))))
            request = TokenRequest(request_id=str(number), ids=ids, max_tokens=draw.choice((1, 1, 3)))
            expected = law.send(request)
            reply = engine.send(request)
            law.finish(request, reply.output_ids)
            assert (reply.hit_len, reply.position_start) == (expected.hit_len, expected.position_start), (number, ids)


def test_ram_cache_is_cleared_by_a_new_start(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    spec = engine_spec("llama.cpp", n_threads=1, cache_ram_mib=100)
    with started(spec, checkpoint("tiny-qwen3"), tmp_path) as engine:
        assert engine.facts.law == "llama.cpp"
        assert hits(engine, A, B2, A) == [0, 17, 1037]  # A came back from host memory
        assert engine.reset()
        assert hits(engine, B2, B2) == [0, 1037]
        server = replace(engine_spec("llama.cpp", mode=Mode.ATTACH, cache_ram_mib=100), url=engine._url)
        with started(server, checkpoint("tiny-qwen3"), tmp_path) as attached:
            assert not attached.reset()


def test_moved_chunks_hit_more_than_the_common_prefix(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    spec = engine_spec("llama.cpp", n_threads=1, n_cache_reuse=64)
    with started(spec, checkpoint("tiny-qwen3"), tmp_path) as engine:
        assert hits(engine, A[:1010], [*A[:300], *A[400:1000], *range(12)]) == [0, 900]


def test_sliding_window(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    model = checkpoint("tiny-gemma3")
    with started(engine_spec("llama.cpp", n_threads=1), model, tmp_path) as engine:
        assert engine.facts.groups == ("full", "swa:128") and engine.facts.law == "llama.cpp"
        assert hits(engine, A, B, B2, A, A) == [0, 1026, 0, 0, 1037]
    with started(engine_spec("llama.cpp", n_threads=1, swa_full=True), model, tmp_path) as engine:
        assert engine.facts.law == "llama.cpp"
        assert hits(engine, A, B, B2, A, A) == [0, 1026, 17, 17, 1037]


def test_recurrent_state_goes_back_to_checkpoints(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    with started(engine_spec("llama.cpp", n_threads=1), checkpoint("tiny-qwen3.5"), tmp_path) as engine:
        assert engine.facts.groups == ("full", "gdn") and engine.facts.law == "llama.cpp"
        assert hits(engine, A, A, B, B2) == [0, 1034, 522, 0]


def test_attach_reads_positions_from_the_reply(
    one_slot: Engine, engine_spec: Specs, checkpoint: Models, tmp_path: Path
) -> None:
    url = one_slot._url
    model, spec = checkpoint("tiny-qwen3"), replace(engine_spec("llama.cpp", mode=Mode.ATTACH), url=url)
    with started(spec, model, tmp_path) as engine:
        assert engine.facts.law is None and any("state it in options" in note for note in engine.facts.notes)
        assert set(engine.facts.options) == {"n_parallel", "n_ctx_slot", "build_info"}
        assert engine.reset()
        replies = [ask(engine, ids) for ids in (A, B, B2)]
        assert [(reply.hit_len, reply.position_start) for reply in replies] == [(0, 0), (1026, 1026), (17, 17)]
        assert replies[0].position_source.startswith("prompt_progress")
    # Closing an attached engine leaves the server running. Its log now holds the attached engine's requests too, so the
    # launched engine could take an older line for this request's start.
    assert ask(one_slot, B2).hit_len == 1037
    stated = LlamaCppOptions(cache_ram_mib=0, n_cache_reuse=0, slot_prompt_similarity=0.1)
    with started(replace(spec, options=stated), model, tmp_path) as engine:
        assert engine.facts.law == "llama.cpp"
    with pytest.raises(UsageError, match="n_parallel = 4"):
        LlamaCppAdapter().start(replace(spec, options=LlamaCppOptions(n_parallel=4)), model, tmp_path)
    with pytest.raises(EngineUnavailable, match="serves a model of"):
        LlamaCppAdapter().start(spec, replace(model, vocab_size=5), tmp_path)


def test_attach_to_nothing(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    spec = engine_spec("llama.cpp", mode=Mode.ATTACH)
    model = checkpoint("tiny-qwen3")
    with pytest.raises(UsageError, match="needs `url`"):
        LlamaCppAdapter().start(spec, model, tmp_path)
    with pytest.raises(EngineUnavailable, match="is a llama-server running"):
        LlamaCppAdapter().start(replace(spec, url="http://127.0.0.1:9"), model, tmp_path)
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        LlamaCppAdapter().start(replace(spec, url="http://127.0.0.1:9", api_key_env="NO_SUCH_KEY"), model, tmp_path)


def test_port_in_use(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineUnavailable, match=f"port {port} cannot be used"):
            LlamaCppAdapter().start(engine_spec("llama.cpp", port=port), checkpoint("tiny-qwen3"), tmp_path)


@pytest.mark.fault("crash at start", "llama.cpp (real)", "while starting...engine.log", 4)
def test_engine_that_dies_while_starting(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    """A quantised V cache needs flash attention; llama.cpp says so in its log."""
    with pytest.raises(EngineUnavailable, match=r"(?s)while starting.*engine\.log"):
        LlamaCppAdapter().start(engine_spec("llama.cpp", type_v="q8_0"), checkpoint("tiny-qwen3"), tmp_path)
    assert "flash_attn" in (tmp_path / "engine.log").read_text(encoding="utf-8", errors="replace")


@pytest.mark.fault("killed between requests", "llama.cpp (real)", "was killed by signal SIGKILL", 4)
def test_server_killed_between_requests(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    with started(engine_spec("llama.cpp", n_threads=1), checkpoint("tiny-qwen3"), tmp_path) as engine:
        child = engine._process.child.pid
        os.kill(child, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="was killed by signal SIGKILL"):
            ask(engine, A)


@pytest.mark.parametrize(("binary", "why"), [("/no/such/llama-server", "No such file"), ("/bin/false", "status 1")])
def test_binary_that_is_none(engine_spec: Specs, checkpoint: Models, tmp_path: Path, binary: str, why: str) -> None:
    spec = replace(engine_spec("llama.cpp"), binary=Path(binary))
    with pytest.raises(EngineUnavailable, match=why):
        LlamaCppAdapter().start(spec, checkpoint("tiny-qwen3"), tmp_path)


def test_binary(engine_spec: Specs, checkpoint: Models, tmp_path: Path, engine_python: Callable[[str], Path]) -> None:
    """An executable that takes llama-server's flags (those this test needs) and serves through the wheel's server."""
    binary = tmp_path / "llama-server"
    binary.write_text(
        dedent(f"""\
        #!{engine_python("llama.cpp")}
        import argparse, signal, xllamacpp
        parser = argparse.ArgumentParser()
        for flag, attribute in {{
            "--model": "model", "--port": "port", "--ctx-size": "n_ctx", "--parallel": "n_parallel",
            "--cache-ram": "cache_ram_mib", "--log-verbosity": "verbosity",
        }}.items():
            parser.add_argument(flag, dest=attribute, type=str if flag == "--model" else int)
        given, rest = parser.parse_known_args()
        assert "--offline" in rest and rest[rest.index("--host") + 1] == "127.0.0.1"
        params = xllamacpp.CommonParams()
        params.model.path = given.model
        for name in ("port", "n_ctx", "n_parallel", "cache_ram_mib", "verbosity"):
            setattr(params, name, getattr(given, name))
        server = xllamacpp.Server(params)
        signal.pause()
        """)
    )
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    spec = replace(engine_spec("llama.cpp", n_ctx=4096), binary=binary, python=None)
    with started(spec, checkpoint("tiny-qwen3"), tmp_path) as engine:
        assert engine.facts.version.startswith("b") and str(binary) in engine.facts.notes
        assert engine.facts.context_len == 4096
        assert hits(engine, A, B, B2) == [0, 1026, 17]


def test_law_says_what_it_does_not_cover(engine_spec: Specs) -> None:
    law_for = LlamaCppAdapter().law_for
    law, read = law_for(engine_spec("llama.cpp", n_parallel=2), {"n_ctx_slot": 4096}, ("full", "gdn"))
    assert (law, read["groups"], read["n_ctx_slot"]) == ("llama.cpp", ["full", "gdn"], 4096)
    attached = engine_spec("llama.cpp", mode=Mode.ATTACH, cache_ram_mib=0, n_cache_reuse=0, slot_prompt_similarity=0.1)
    assert law_for(attached, {"n_parallel": 1, "n_ctx_slot": 8192}, ("full",))[0] == "llama.cpp"
    for spec, facts, groups, why in (
        (engine_spec("llama.cpp", n_cache_reuse=9), {"n_ctx_slot": 256}, ("full", "swa:128"), "chunks moved in window"),
        (engine_spec("llama.cpp"), {}, ("full", "swa:128", "gdn"), "one window or"),
        (attached, {"n_parallel": 2}, ("full",), "kv_unified"),
        (attached, {"n_parallel": 1}, ("full", "gdn"), "checkpoint_min_step, n_batch, n_ctx_checkpoints, n_ubatch"),
        (
            replace(attached, options=attached.options.model_copy(update={"cache_ram_mib": 64})),
            {"n_parallel": 1},
            ("full",),
            "cannot be emptied",
        ),
    ):
        with pytest.raises(LawDoesNotCover, match=why):
            law_for(spec, facts, groups)


def test_wrong_dtype(engine_spec: Specs, checkpoint: Models, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not convert"):
        LlamaCppAdapter().start(engine_spec("llama.cpp", dtype="bfloat16"), checkpoint("tiny-qwen3"), tmp_path)


def test_the_harness_own_wheel_is_used_at_the_pinned_version_only(
    engine_spec: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = engine_spec("llama.cpp")
    assert wheel_python(named)[0] == named.python
    monkeypatch.setattr("importlib.metadata.version", lambda name: named.version)
    assert wheel_python(replace(named, python=None)) == (Path(sys.executable), "hitparity's own environment")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2026.1.1")
    monkeypatch.setattr("adapters.llama_cpp.launch.python_for", lambda spec: Path("/built/python"))
    assert wheel_python(replace(named, python=None)) == (Path("/built/python"), "built environment")
