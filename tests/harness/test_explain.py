"""`hitparity explain`: pictures, the binding constraint with its numbers, levers that work, all three inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner, Result

from harness.cli import app
from harness.explain.counterfactual import Sent, World
from harness.explain.explanation import explain
from harness.explain.levers import levers
from harness.explain.picture import MARKS, cells, picture
from harness.explain.sequence import from_lengths, parse_lengths
from harness.store import load_run
from vocabulary.engine import TokenRequest
from vocabulary.errors import ExitCode, UsageError
from vocabulary.ledger import Cause, Interval, Ledger

HYBRID = {"groups": ["full:1536", "gdn:1536"]}
MTP = HYBRID | {"method": "mtp", "num_speculative_tokens": 1}
EXAMPLE = Path(__file__).parents[2] / "results" / "quickstart-all" / "example"


def world(law_id: str, options: dict[str, object], *lengths: int) -> World:
    sent = [
        Sent(TokenRequest(request_id=str(n), ids=tuple(range(length))), (10**6,)) for n, length in enumerate(lengths)
    ]
    return World(law_id=law_id, options=options, sent=tuple(sent))


def hitparity(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.sampled_from(list(Cause))), min_size=1, max_size=8), st.integers(1, 120)
)
def test_a_picture_is_as_wide_as_asked_and_shows_every_interval(parts: list[tuple[int, Cause]], width: int) -> None:
    intervals, position = [], 0
    for tokens, cause in parts:
        intervals.append(Interval(position, position + tokens, cause))
        position += tokens
    ledger = Ledger(position, tuple(intervals))
    assert sum(count for _, count in cells(ledger, width)) == max(width, len(intervals))
    assert all(count >= 1 for _, count in cells(ledger, width))
    assert set(picture(ledger, width).plain) == {MARKS[cause][0] for _, cause in parts}


def test_every_cause_has_a_mark_of_its_own() -> None:
    assert set(MARKS) == set(Cause)
    assert len({mark for mark, _ in MARKS.values()}) == len(Cause)


def test_an_exact_multiple_is_explained_with_the_state_past_the_cap() -> None:
    why = explain(world("vllm@0.26", HYBRID, 3072, 3072))
    assert why.sentence == (
        "full attention reaches 3072, the recurrent state only exists at 3072, which is past the cap 3071; "
        "one more token in the prompt would hit 3072; sent once more it would hit 1536"
    )
    assert (why.hit_len, why.one_more_hit, why.again_hit) == (0, 3072, 1536)
    assert why.binding is Cause.NO_STATE


def test_what_is_said_about_one_more_token_is_what_happens() -> None:
    assert world("vllm@0.26", HYBRID, 3072, 3073).expectations()[-1].hit_len == 3072
    assert [e.hit_len for e in world("vllm@0.26", HYBRID, 3072, 3072, 3072).expectations()] == [0, 0, 1536]


def test_a_drafter_gives_back_a_whole_block_and_levers_say_what_helps() -> None:
    why = explain(world("vllm@0.30", MTP, 1857, 1857))
    assert why.hit_len == 0
    assert why.binding is Cause.SPEC_DROP
    assert "1536 tokens match, and the drafter gives back the last 1536" in why.sentence
    assert why.levers
    changes = {lever.change: lever.hit_len for lever in why.levers}
    assert changes["disable_eagle_block_drop = true"] == 1536
    assert changes["without num_speculative_tokens = 1"] == 1536
    assert changes["vllm@0.33"] == 1536


@pytest.mark.parametrize(
    ("law_id", "options", "lengths"),
    [
        ("vllm@0.30", MTP, (3714, 1857)),
        ("vllm@0.23", MTP, (1857, 1857)),
        ("sglang@0.5.23", {"page_size": 64}, (129, 127)),
    ],
)
def test_every_lever_lengthens_the_hit(law_id: str, options: dict[str, object], lengths: tuple[int, ...]) -> None:
    asked = world(law_id, options, *lengths)
    hit = asked.expectations()[-1].hit_len
    found = levers(asked, hit)
    assert found
    assert all(lever.hit_len > hit and lever.cost for lever in found)


def test_a_lever_that_lengthens_only_an_unbacked_hit_is_not_offered() -> None:
    why = explain(world("vllm@0.32", MTP, 3714, 1857))
    assert why.hit_len == 0
    assert "vllm@0.23" not in {lever.change for lever in why.levers or ()}  # reports 1536 and holds none of it


def test_a_hit_that_is_not_held_is_said() -> None:
    why = explain(world("vllm@0.23", MTP, 3714, 1857))
    assert (why.hit_len, why.backed_len) == (1536, 0)
    assert "only 0 tokens of the hit are really held by every layer group" in why.sentence


def test_the_forms_of_the_command_line() -> None:
    text = hitparity(
        "explain", "--prompt-lengths", "3714,1857", "--relation", "prefix", "--engine", "vllm@0.23", "--engine",
        "vllm@0.33", "--groups", "full:1536,gdn:1536", "--mtp",
    ).stdout  # fmt: skip
    assert "request 1: 1857 tokens, 1857 of them computed before" in text
    assert "hit 1536 of 1857" in text
    assert "vllm@0.33: no_state [0, 1536)" in text
    paged = hitparity("explain", "--engine", "sglang@0.5.23", "--page", "64", "--prompt-lengths", "129,129").stdout
    assert "reused [0, 128), last_token [128, 129)" in paged
    case = hitparity("explain", "--case", "reports/vllm-exact-multiple:0.26-3072").stdout
    assert "0.26-3072, request 1: 3072 tokens, 3072 of them computed before, stated hit 0" in case
    wide = hitparity("explain", "--engine", "vllm@0.32", "--groups", "full:16,swa:16:64", "--prompt-lengths", "100,100")
    assert wide.exit_code == ExitCode.CLEAN


def test_json_holds_the_same_and_a_refusing_law_is_said() -> None:
    result = hitparity(
        "explain", "--json", "--engine", "vllm@0.26", "--engine", "vllm@0.1", "--prompt-lengths", "3072,3072",
        "--groups", "full:1536,gdn:1536",
    )  # fmt: skip
    vllm, unknown = json.loads(result.stdout)[1]["answers"]
    assert (vllm["hit_len"], vllm["one_more_hit"], vllm["binding"]) == (0, 3072, "no_state")
    assert sum(part["end"] - part["start"] for part in vllm["ledger"]) == 3072
    assert vllm["refused"] is None
    assert "unknown law 'vllm@0.1'" in unknown["refused"]
    assert "hit_len" not in unknown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt-lengths", "5"], "needs --engine"),
        (["--prompt-lengths", "5,x", "--engine", "vllm@0.32"], "prompt length 'x'"),
        (["--prompt-lengths", "5", "--engine", "vllm@0.32", "--relation", "twins"], "relation 'twins'"),
        (["--prompt-lengths", "5", "--case", "published"], "give one of"),
        ([], "give one of"),
        (["--case", "published/vllm-ascend-0.23:none"], "no case 'none'"),
        (["--prompt-lengths", "9,9", "--engine", "foo@1"], "unknown law 'foo@1'"),
        (["--prompt-lengths", "9,9", "--engine", ""], "name a law"),
        (["--prompt-lengths", "9,9", "--engine", "vllm@0.32", "--option", "nope=3"], "no option 'nope'"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], says: str) -> None:
    result = hitparity("explain", *arguments)
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)


def test_relations() -> None:
    assert parse_lengths("3_714, 1857") == (3714, 1857)
    first, second = from_lengths((100, 80), "siblings:60", 1)
    assert first.prompt.ids[:60] == second.prompt.ids[:60]
    assert not set(first.prompt.ids[60:]) & set(second.prompt.ids[60:])
    prefixes = from_lengths((100, 80), "prefix", 2)
    assert [len(request.prompt) for request in prefixes] == [100, 80, 100, 80]
    assert prefixes[1].prompt.ids == prefixes[0].prompt.ids[:80]
    fresh = from_lengths((10, 10), "fresh", 1)
    assert not set(fresh[0].prompt.ids) & set(fresh[1].prompt.ids)


def test_a_recorded_request_is_explained_from_its_run() -> None:
    run = load_run(EXAMPLE)
    record = next(
        r for r in run.requests if r.engine == "vllm" and r.role == "probe" and r.hit_len and "ladder" in r.cell
    )
    result = hitparity("explain", EXAMPLE, "--request", record.request_id)
    assert result.exit_code == ExitCode.CLEAN, result.output
    assert f"hit {record.hit_len} of {record.prompt_len}" in result.stdout
    wrong = hitparity("explain", EXAMPLE, "--request", "nobody")
    assert "no request 'nobody'" in str(wrong.exception)


def test_a_narrow_terminal_without_colour_gets_plain_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    text = hitparity("explain", "--engine", "vllm@0.32", "--prompt-lengths", "100,100").stdout
    assert "\x1b" not in text
    pictures = [line for line in text.splitlines() if "  hit " in line]
    assert pictures and all(len(line) <= 60 for line in pictures)
    assert Console().width
