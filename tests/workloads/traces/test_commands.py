"""The commands: generate, import, and explain on a user's own traffic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.cli import app
from vocabulary.errors import UsageError
from workloads.traces.registry import open_trace

GOLDEN = Path(__file__).parent / "golden"
KEY = "0123456789abcdefghij"


def hitparity(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=True)
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def imported(tmp_path: Path, *more: object, log: str = "sglang-0.5.23-json.log", source: str = "sglang") -> Path:
    out = tmp_path / "t.jsonl"
    hitparity("import", GOLDEN / log, "--from", source, "--out", out, "--skip-malformed", *more)
    return out


def test_import_keeps_ids_times_and_reported_hits(tmp_path: Path) -> None:
    requests = list(open_trace(imported(tmp_path)))
    assert [each.input_len for each in requests] == [80, 80, 90, 81, 81]
    assert [each.hit_len for each in requests] == [0, 79, 50, 80, 80]
    assert requests[0].arrival_ns == 0
    text = (tmp_path / "t.jsonl").read_text()
    assert "Hello" not in text and "tiny-qwen3" not in text, "no text of the log is in the trace"


def test_explain_says_what_the_engine_said(tmp_path: Path) -> None:
    """Law and engine agree on real traffic, under hashed IDs as well."""
    for more in ((), ("--hash-key", KEY, "--vocab-size", 2048)):
        trace = imported(tmp_path, *more)
        found = json.loads(hitparity("explain", trace, "--engine", "sglang@0.5.23", "--page", 1, "--json").output)
        assert (found[0]["requests"], found[0]["reported"], found[0]["disagreeing"]) == (5, 5, 0)
        assert found[0]["causes"]["reused"]["tokens"] == 289
        assert sum(total["tokens"] for total in found[0]["causes"].values()) == found[0]["prompt_tokens"] == 412


def test_explain_names_causes_requests_and_options(tmp_path: Path) -> None:
    trace = imported(tmp_path)
    text = hitparity("explain", trace, "--engine", "sglang@0.5.23", "--page", 64).output
    assert "granule" in text and "page_size = 1" in text
    found = json.loads(hitparity("explain", trace, "--engine", "sglang@0.5.23", "--page", 64, "--json").output)[0]
    granule = found["causes"]["granule"]
    assert granule["tokens"] == sum(each["tokens"] for each in granule["behind"]) > 0
    assert granule["behind"][0]["line"] in range(2, 7)
    assert found["disagreeing"] > 0, "the traffic was served with pages of 1"
    best = found["changes"][0]
    assert best["change"] == "page_size = 1" and best["saved_tokens"] == granule["tokens"]


def test_explain_one_line(tmp_path: Path) -> None:
    trace = imported(tmp_path)
    text = hitparity("explain", trace, "--engine", "sglang@0.5.23", "--page", 64, "--request", 4).output
    assert "hit 0 of 90" in text and "page_size = 1" in text and "the engine reported 50, the law says 0" in text
    with pytest.raises(UsageError, match="no request begins in line 40"):
        hitparity("explain", trace, "--engine", "vllm@0.32", "--request", 40)
    with pytest.raises(UsageError, match="a trace needs --engine"):
        hitparity("explain", trace)


def test_reported_hits_of_another_engine_are_not_compared(tmp_path: Path) -> None:
    found = json.loads(
        hitparity("explain", imported(tmp_path), "--engine", "vllm@0.32", "--no-levers", "--json").output
    )
    assert found[0]["reported"] == 0


def test_llama_cpp_logs_explain_their_own_hits(tmp_path: Path) -> None:
    """The law, sent the sequence made of a slot log, predicts what the log reports."""
    trace = imported(tmp_path, log="llama.cpp-b11549-ram.log", source="llama.cpp")
    options = ("--option", "n_parallel=2", "--option", "cache_ram_mib=64", "--option", "n_ctx_slot=2048")
    options += ("--option", "state_bytes_per_token=2048")
    law = "llama.cpp"
    found = json.loads(hitparity("explain", trace, "--engine", law, *options, "--no-levers", "--json").output)[0]
    assert (found["requests"], found["reported"]) == (12, 12)
    assert found["disagreeing"] == 0, found["disagreements"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--from", "nginx"), "there are openai, vllm"),
        (("--from", "openai"), "needs --tokenizer"),
        (("--from", "vllm"), "no request in it"),
        (("--from", "sglang"), "--skip-malformed leaves such requests out"),
        (("--from", "sglang", "--skip-malformed", "--hash-key", KEY), "needs --vocab-size"),
        (("--from", "sglang", "--skip-malformed", "--hash-key", "x", "--vocab-size", 9), "at least 16"),
        (
            ("--from", "sglang", "--skip-malformed", "--hash-key", KEY, "--vocab-size", 90),
            "outside the vocabulary of 90",
        ),
    ],
)
def test_mistakes_of_import(tmp_path: Path, arguments: tuple[object, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        hitparity("import", GOLDEN / "sglang-0.5.23-json.log", "--out", tmp_path / "t.jsonl", *arguments)
    assert list(tmp_path.iterdir()) == [], "nothing half-written stays"


def test_generate(tmp_path: Path) -> None:
    out = tmp_path / "g.jsonl"
    said = hitparity("generate", out, "--requests", 40, "--mean-len", 800, "--format", "bailian").output
    assert "40 requests" in said and len(list(open_trace(out))) == 40
    with pytest.raises(UsageError, match="there are hitparity"):
        hitparity("generate", out, "--format", "csv")
