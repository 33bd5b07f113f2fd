"""`hitparity handover`: answers hold together, numbers are the laws', the reference engine's tables are real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.explain.sequence import from_lengths
from harness.figures.request_life import request_life
from harness.handover import SOURCES, Answer, Numbers, Question, System, law_of, load, serve
from harness.handover_cli import _case
from harness.handover_observe import live
from harness.handover_show import Column, counts, markdown, runs
from vocabulary.engine import TokenRequest
from vocabulary.errors import UsageError


def numbers(system: str, lengths: list[int], **options: object) -> Numbers:
    requests = [
        TokenRequest(request_id=str(index), ids=tuple(request.prompt.ids))
        for index, request in enumerate(from_lengths(lengths, "prefix", 1))
    ]
    return serve(law_of(load(system), None, options), requests, [(7,)] * len(requests))


@pytest.mark.parametrize("system", SOURCES)
def test_every_system_answers_every_question_with_a_source(system: str) -> None:
    loaded = load(system)
    assert [answer.question for answer in loaded.answers] == list(Question)
    for answer in loaded.answers:
        assert answer.source and "/" not in answer.source[:1], "a file within the release, not of a machine"
        assert not re.search(r"/(work|root|home|tmp)/", answer.text + answer.source)
        assert ("ASSUMPTION" in answer.text) or answer.evidence != "assumed"
    assert any(answer.numbers for answer in loaded.answers)


@pytest.mark.parametrize(
    ("system", "options", "hit", "tail"),
    [
        ("vllm", {}, 1024, 14),
        ("vllm", {"block_size": 128}, 1024, 14),
        ("sglang", {"page_size": 64}, 1024, 14),
        ("sglang", {}, 1037, 1),
        ("llama.cpp", {}, 1037, 1),
        ("llama-cpp-python", {}, 1038, 0),
        ("tensorrt-llm", {}, 1037, 1),
        ("tensorrt-llm", {"enable_partial_reuse": False}, 1024, 14),
        ("deepinfer", {}, 0, 1038),
        ("reference", {"block_size": 16}, 1024, 14),
    ],
)
def test_numbers_of_a_repeated_prompt(system: str, options: dict[str, object], hit: int, tail: int) -> None:
    got = numbers(system, [1038, 1038], **options)
    assert (got.length, got.lcp, got.cap, got.hit, got.tail) == (1038, 1038, 1037, hit, tail)
    assert got.hit_blocks * got.granule + got.hit_part == hit
    assert got.kept == (f"0 ... {hit - 1:,}" if hit else "none")
    for answer in load(system).answers:
        filled = got.fill(answer.numbers or "")
        assert "{" not in filled and "None" not in filled


def test_filled_formulas_read_as_they_should() -> None:
    align = load("vllm").answer(Question.ALIGN)
    assert align.numbers is not None
    filled = numbers("vllm", [1038, 1038]).fill(align.numbers)
    assert filled == "floor(min(1,038, 1,037) / 16) * 16, after all groups: 1,024"


def test_answers_that_do_not_hold_together_are_refused() -> None:
    good = load("vllm").answers
    with pytest.raises(ValueError, match="no number 'hits'"):
        Answer(question=Question.MATCH, text="x" * 20, numbers="{hits}", source="a.py", evidence="read")
    with pytest.raises(ValueError, match="one answer to each question"):
        System(system="x", release="1", law="vllm@0.32", answers=good[:-1])
    with pytest.raises(UsageError, match="there are: vllm, vllm-ascend"):
        load("vlm")


def test_markdown_is_one_table() -> None:
    text = markdown(
        [Column(system=load(system), numbers=numbers(system, [65, 65])) for system in ("vllm", "llama.cpp")]
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(Question)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    assert "floor(min(65, 64) / 16) * 16, after all groups: 64" in text


def test_command(tmp_path: Path) -> None:
    run = CliRunner().invoke(
        app,
        ["handover", "deepinfer", "--prompt-lengths", "1000", "--groups", "full,swa:128", "--external-hit", "512"],
        env={"COLUMNS": "200"},
    )
    assert run.exit_code == 0, run.output
    assert re.search(r"\[512, 1000\).* 0 .*116-133, 0-109.* 128 .* 0 .* 134 ", run.output)
    everything = CliRunner().invoke(app, ["handover", "--markdown", "--prompt-lengths", "1038,1038"])
    assert everything.exit_code == 0, everything.output
    assert all(system in everything.output for system in SOURCES)
    lonely = CliRunner().invoke(app, ["handover", "--groups", "full"])
    assert isinstance(lonely.exception, UsageError) and "--prompt-lengths" in str(lonely.exception)
    version = CliRunner().invoke(app, ["handover", "vllm@0.33", "--markdown", "--prompt-lengths", "9"])
    assert "law vllm@0.33" in version.output


def test_runs_and_counts() -> None:
    assert runs([0, 1, 2, 7, 9, 10]) == "0-2, 7, 9-10"
    assert runs([]) == "none"
    assert counts([2, 2, 1]) == "2 blocks x 2, 1 blocks x 1"


@pytest.mark.live("reference")
@pytest.mark.parametrize(
    ("law", "options", "hit", "blocks"), [("vllm@0.32", {"block_size": 16}, 688, 65), ("sglang@0.5.23", {}, 700, 1038)]
)
def test_the_reference_engines_own_tables(law: str, options: dict[str, int], hit: int, blocks: int) -> None:
    seen = live(_case("700,1038", "prefix"), law, options).seen
    tables = seen.tables
    assert (seen.hit_len, seen.position_start) == (hit, hit)
    assert len(tables.block_table) == len(tables.holders) == blocks
    assert tables.read_only_blocks * tables.block_len == hit
    shared = tables.read_only_blocks
    assert set(tables.holders[:shared]) == {2}  # the request and the copy sent with it
    assert tables.positions[0] == hit
    assert tables.query_start_loc == (0, seen.first_query_len) == (0, tables.positions[1] - hit)
    assert tables.seq_len == seen.first_key_len == tables.positions[1]
    for position, slot in zip(range(*tables.positions), tables.slot_mapping, strict=True):
        block, offset = divmod(position, tables.block_len)
        assert slot == tables.block_table[block] * tables.block_len + offset
    read = {tables.block_table[index] for index in range(shared)}
    assert not read & {slot // tables.block_len for slot in tables.slot_mapping}
    assert tables.read_only_unchanged


@pytest.mark.live("reference")
def test_a_hybrids_life_is_told_and_drawn(tmp_path: Path) -> None:
    made = live(_case("200,330", "prefix"), "vllm@0.32", {"groups": ["full:64", "gdn:64"]})
    full, gdn = made.seen.tables.groups
    assert made.seen.hit_len == made.expectation.hit_len == made.steps[0][0] == 192
    assert gdn.restored is not None and gdn.restored[0] == 192
    assert [position for position, _ in gdn.stored] == [320, 330]
    assert sum(end - start for start, end in full.read) == 192
    request_life(made).savefig(tmp_path / "life.svg")
    drawn = (tmp_path / "life.svg").read_text(encoding="utf-8")
    assert "330 tokens, hit 192" in drawn and "first computed position 192" in drawn
