"""What the SGLang adapter does without an engine: recorded streams (0.5.23), probe lines, flags, the law."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.base import EngineSpec
from adapters.sglang.adapter import SglangAdapter
from adapters.sglang.engine import body_of
from adapters.sglang.facts import REPORTED, facts_of
from adapters.sglang.options import SglangOptions, server_arguments
from adapters.sglang.probe_log import ProbeLog
from adapters.sglang.transcript import decode
from checkpoints import Checkpoint
from vocabulary.engine import Feature, Mode, TokenRequest
from vocabulary.errors import EngineFailed, EngineUnavailable, LawDoesNotCover, RequestRefused, UsageError

GOLDEN = Path(__file__).parent / "golden"
INFO: dict[str, Any] = dict.fromkeys(REPORTED) | {
    "version": "0.5.23",
    "page_size": 16,
    "max_total_num_tokens": 1000,
    "max_req_input_len": 994,
    "disable_radix_cache": False,
    "enable_hierarchical_cache": False,
    "device": "cpu",
    "dtype": "float32",
    "incremental_streaming_output": False,
}


def spec(mode: Mode = Mode.LAUNCH, device: str = "cpu", dtype: str = "auto", **options: Any) -> EngineSpec:
    return EngineSpec(
        engine="sglang", version="0.5.23", mode=mode, device=device, dtype=dtype, options=SglangOptions(**options)
    )


def model(architecture: str = "qwen3") -> Checkpoint:
    return Checkpoint(
        name=f"tiny-{architecture}",
        directory=Path("/models/tiny"),
        architecture=architecture,
        dtype="float32",
        vocab_size=2048,
        context_len=32768,
        reserved_ids=frozenset(),
        fingerprint="",
    )


def recorded(name: str) -> Iterator[tuple[int, Any]]:
    lines = (GOLDEN / f"sglang_0.5.23_{name}.sse").read_text(encoding="utf-8").splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    return enumerate(map(json.loads, events), start=100)


def test_warm_stream() -> None:
    answer = decode(recorded("warm"))
    assert (answer.prompt_len, answer.hit_len) == (40, 32)
    assert len(answer.output_ids) == 3, "every event repeats the earlier output ids"
    assert answer.output_ids[0] == 127
    assert answer.first_logprob == pytest.approx(-4.721366882324219)
    assert (answer.first_token_ns, answer.done_ns) == (100, 102)
    assert answer.native["cached_tokens_details"] == {"device": 32, "host": 0}


@pytest.mark.parametrize(
    ("name", "why"), [("abort", "exceeds the maximum allowed length"), ("error", "cannot be empty")]
)
def test_refused_inside_a_stream_of_status_200(name: str, why: str) -> None:
    with pytest.raises(RequestRefused, match=why):
        decode(recorded(name))


def test_stream_that_ends_early_or_is_another_protocol() -> None:
    events = list(recorded("warm"))
    for cut in range(len(events)):
        with pytest.raises(EngineFailed, match="ended before"):
            decode(iter(events[:cut]))
    for strange in (
        {"choices": []},
        {"meta_info": {"finish_reason": None}},
        ["?"],
        {"error": {"code": 500, "message": "x"}},
    ):
        with pytest.raises(EngineFailed):
            decode(iter([*events, (103, strange)]))


@pytest.mark.parametrize(
    ("code", "kind"), [(399, EngineFailed), (400, RequestRefused), (499, RequestRefused), (500, EngineFailed)]
)
def test_only_4xx_refuses(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^sglang: no$"):
        decode([(1, {"error": {"code": code, "message": "no"}})])


def test_an_event_of_unknown_form_is_quoted() -> None:
    strange = {"meta_info": 5, "rest": "x" * 400}
    with pytest.raises(EngineFailed) as failed:
        decode([(1, strange)])
    assert str(failed.value).endswith(f": {str(strange)[:300]}")


def test_the_first_token_is_timed_by_the_first_event_that_has_one() -> None:
    events = list(recorded("warm"))
    waiting = events[0][1] | {"output_ids": []}
    answer = decode([(7, waiting), *events])
    assert (answer.first_token_ns, answer.done_ns) == (100, 102)
    assert decode([(time, event | {"output_ids": []}) for time, event in events]).first_token_ns is None


def test_probe_lines(tmp_path: Path) -> None:
    log = ProbeLog(tmp_path / "probe.jsonl")
    assert log.take("a") == ()

    def line(rid: str, first: int | None, last: int | None) -> str:
        return json.dumps({"rid": rid, "first": first, "last": last}) + "\n"

    half, rest = line("a", 256, 511)[:9], line("a", 256, 511)[9:]
    log.path.write_text(line("a", 0, 255) + line("b", 16, 40) + half, encoding="utf-8")
    assert log.take("b") == ((16, 41),)
    with log.path.open("a", encoding="utf-8") as file:
        file.write(rest + line("a", None, None))
    assert log.take("a") == ((0, 256), (256, 512))
    assert log.take("a") == ()


def test_body() -> None:
    plain = body_of(TokenRequest(request_id="r", ids=(5, 6)), "r#0")
    assert (plain["input_ids"], plain["rid"]) == ([5, 6], "r#0")
    assert not {"cache_salt", "return_logprob", "logprob_start_len"} & plain.keys()
    both = frozenset({Feature.LOGPROB, Feature.PROMPT_LOGPROBS})
    full = body_of(TokenRequest(request_id="r", ids=(5,), namespace="red", features=both), "r#1")
    assert (full["cache_salt"], full["return_logprob"], full["logprob_start_len"]) == ("red", True, 0)


def test_flags() -> None:
    cpu = server_arguments(SglangOptions(page_size=16, attention_backend="flex_attention"), spec(), model(), 31000)
    values = dict(itertools.pairwise(cpu))
    assert values["--dtype"] == "float32", "SGLang's own auto would be float16"
    assert (values["--page-size"], values["--attention-backend"]) == ("16", "flex_attention")
    assert (values["--sampling-backend"], values["--grammar-backend"]) == ("pytorch", "none")
    assert {"--skip-server-warmup", "--skip-tokenizer-init", "--disable-cuda-graph", "--sleep-on-idle"} <= {*cpu}
    assert "--disable-radix-cache" not in cpu
    cuda = server_arguments(SglangOptions(), spec(device="cuda", dtype="bfloat16"), model(), 31000)
    assert {"--attention-backend", "--sampling-backend", "--disable-cuda-graph"}.isdisjoint(cuda)
    assert cuda[cuda.index("--page-size") + 1] == "1"
    assert cuda[cuda.index("--dtype") + 1] == "bfloat16"


def test_law() -> None:
    law_for = SglangAdapter().law_for
    law, options = law_for(spec(), INFO, ("full",))
    assert law == "sglang@0.5.23"
    assert (options["page_size"], options["max_total_tokens"]) == (16, INFO["max_total_num_tokens"])
    assert options["chunked_prefill_size"] == INFO["chunked_prefill_size"]
    eagle = law_for(spec(), INFO | {"speculative_algorithm": "EAGLE"}, ("full",))[1]
    assert eagle["speculative_algorithm"] == "EAGLE"
    states = {
        "max_mamba_cache_size": 64,
        "mamba_radix_cache_strategy": "extra_buffer",
        "disable_overlap_schedule": True,
    }
    hybrid = law_for(spec(), INFO | states, ("full", "gdn"))[1]
    assert (hybrid["groups"], hybrid["max_mamba_cache_size"]) == (["full", "gdn"], 64)
    for changed, groups, why in (
        (states | {"max_mamba_cache_size": None}, ("full", "gdn"), "unknown number of states"),
        (states | {"disable_overlap_schedule": False}, ("full", "gdn"), "overlapped"),
        ({"speculative_algorithm": "MEDUSA"}, ("full",), "MEDUSA"),
        ({"enable_hierarchical_cache": True}, ("full",), "hierarchical"),
        ({"version": "0.5.22"}, ("full",), r"0\.5\.22"),
    ):
        with pytest.raises(LawDoesNotCover, match=why):
            law_for(spec(), INFO | changed, groups)


def test_server_that_does_not_fit_the_experiment() -> None:
    assert facts_of(INFO, spec(), model(), {"model_type": "qwen3"}).context_len == 994
    gemma = facts_of(INFO, spec(), model("gemma3_text"), {"model_type": "gemma3_text"})
    assert gemma.groups == ("full",) and gemma.can_salt
    assert gemma.notes[-1] == "SGLang keeps full KV for the sliding-window layers of Gemma 3"
    assert not any("Gemma" in note for note in facts_of(INFO, spec(), model(), {"model_type": "qwen3"}).notes)
    for info, running, why in (
        (INFO, "llama", "runs a 'llama' model"),
        (INFO | {"device": "cuda"}, "qwen3", "runs on 'cuda'"),
        (INFO | {"incremental_streaming_output": True}, "qwen3", "incremental-streaming-output"),
        ({"version": "0.4"}, "qwen3", r"no 'page_size'.*this is 0\.4"),
    ):
        with pytest.raises(EngineUnavailable, match=why):
            facts_of(info, spec(), model(), {"model_type": running})


def test_refused_before_anything_starts(tmp_path: Path) -> None:
    adapter = SglangAdapter()
    with pytest.raises(EngineUnavailable, match="no CPU forward for the GDN layers"):
        adapter.start(spec(), model("qwen3_5_text"), tmp_path)
    with pytest.raises(UsageError, match="no worker mode"):
        adapter.start(spec(Mode.WORKER), model(), tmp_path)
    with pytest.raises(UsageError, match="attach mode needs url"):
        adapter.start(spec(Mode.ATTACH), model(), tmp_path)
    assert not list(tmp_path.iterdir())
