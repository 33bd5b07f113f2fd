from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from sample_run import ALL, FORGETFUL, LAW, LLAMA_CPP, REFERENCE, SGLANG_1, SILENT, VLLM, Played, sample_run

from harness.records import Finding, FindingKind, RequestRecord
from harness.store import Run
from harness.summary import engine_summaries, remarks, verdict
from harness.table import run_tables, widened


def shown(run: Run, *, width: int = 100, full: bool = False) -> str:
    tables = run_tables(run.cells, run.requests, full=full, planned=run.manifest.cells)
    console = widened(Console(width=width, no_color=True, force_terminal=False), tables)
    with console.capture() as capture:
        for renderable in tables:
            console.print(renderable)
    return capture.get()


def rows(text: str, *words: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if all(word in line for word in words)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    engines = (*ALL, FORGETFUL, SILENT)
    return sample_run(tmp_path_factory.mktemp("run"), engines, failed=["vllm block_size=7"])


def test_a_request_is_a_row_with_its_four_quantities_and_its_ledger(tmp_path: Path) -> None:
    text = shown(sample_run(tmp_path, [VLLM, SGLANG_1], ["changed"]), width=120)
    assert rows(text, "B  ", "vllm") == [
        "B 1038 1026 vllm block_size=32 1024 1024 14 2.1 reused 1024 | granule 2 | novel 12"
    ]
    assert "sglang page_size=1 1037 1037 1 2.0 reused 1037 | last_token 1" in rows(text, "1037")


def test_engines_of_one_send_stand_together(run: Run) -> None:
    lines = shown(run).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(" B' "))
    block = lines[start : lines.index(" " * 100, start)]
    labels = ("vllm block_size=32", "sglang page_size=1", "llama.cpp", "^reference as", "~law", "silent")
    assert all(any(label in line for line in block) for label in labels)


def test_unknown_is_a_question_mark_and_missing_time_a_dash(run: Run) -> None:
    text = shown(run)
    assert "silent ? ? ? 12.4 ?" in rows(text, "silent")
    assert any(" - " in row for row in rows(text, "~law"))
    assert "silent on tiny-qwen3: 94 of 94 requests showed neither hit nor start" in text


def test_findings_are_marked_and_told(run: Run) -> None:
    text = " ".join(shown(run).split())
    assert "! unexplained" in text
    assert "! vllm forgetful, changed on tiny-qwen3, A (2): unexplained: hit 0, the law vllm@0.32 says 1024" in text
    assert "vllm block_size=7, changed on tiny-qwen3: failed after 0 requests: the server ended" in text


def test_a_long_workload_becomes_a_matrix_unless_all_is_asked_for(run: Run) -> None:
    text = shown(run)
    assert "ladder on tiny-qwen3: hits" in text
    assert rows(text, "L=17")[0].startswith("L=17 (2-3) 17 0 16 16 16")
    assert "28 cold sends that nobody hit are left out" in " ".join(text.split())
    assert "ladder on tiny-qwen3: hits" not in shown(run, full=True)


def test_a_matrix_marks_what_the_law_does_not_expect(tmp_path: Path) -> None:
    late = Played("late", "vllm", "0.32.0", "vllm@0.32", {"block_size": 16}, forgets_at=3 + 3 * 5 + 1)
    text = shown(sample_run(tmp_path, [late], ["ladder"]))
    assert "L=32 (2) 32 0!" in rows(text, "L=32")


def test_sentinels_and_controls_are_hidden_unless_all_is_asked_for(run: Run) -> None:
    assert "sentinel" not in shown(run)
    assert "sentinel (2)" in shown(run, full=True)
    assert ", control" in shown(run, full=True)


def test_the_summary_adds_up(run: Run) -> None:
    probes = [r for r in run.requests if r.engine_label == SGLANG_1.label and r.role == "probe"]
    reused, prompt = sum(r.hit_len or 0 for r in probes), sum(r.prompt_len for r in probes)
    text = shown(run, width=140)
    [row] = rows(text[text.index("Summary") : text.index("Hit is not")], f" {SGLANG_1.label} ")
    assert f"{len(probes)} {prompt} {reused} {100 * reused / prompt:.1f} % 0" in row


@pytest.mark.parametrize("width", [100, 140])
def test_no_line_is_wider_than_the_terminal(run: Run, width: int) -> None:
    assert max(map(len, shown(run, width=width).splitlines())) <= width


def test_names_are_not_markup(tmp_path: Path) -> None:
    odd = Played("[red]x", "vllm", "0.32.0", "vllm@0.32", {"block_size": 32})
    text = shown(sample_run(tmp_path, [odd, LAW, REFERENCE], ["changed"], model="[/bold]\x1b[31m|m|"))
    assert "[red]x" in text
    assert "[/bold]\N{REPLACEMENT CHARACTER}[31m|m|" in text
    assert "\x1b" not in text


def test_a_run_without_answers_still_says_so(tmp_path: Path) -> None:
    text = " ".join(shown(sample_run(tmp_path, [], failed=["vllm"])).split())
    assert "failed after 0 requests" in text
    assert text.endswith("nothing was measured: no request was answered: 1 of 1 planned cell not run or unfinished")


def test_planned_cells_that_never_ran_are_named(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM], ["changed"], failed=["sglang"])
    cut = RequestRecord.model_validate(run.requests[0].model_dump(by_alias=True) | {"cell": "cell-8"})
    planned = replace(run, manifest=run.manifest.model_copy(update={"cells": ("cell-0", "cell-1", "cell-8", "cell-9")}))
    text = " ".join(shown(replace(planned, requests=(*run.requests, cut))).split())
    assert "sglang, changed on tiny-qwen3: failed after 0 requests: the server ended with status 1" in text
    assert "! cell-8: unfinished, killed after 1 request ! cell-9: not run" in text
    assert "3 of 4 planned cells not run or unfinished" in text


@pytest.mark.parametrize("planned", [(), ("cell-0",)])
def test_no_request_never_reads_as_clean(planned: tuple[str, ...]) -> None:
    said = verdict((), (), planned)
    assert said.startswith("nothing was measured: no request was answered")
    assert "finding" not in said


def test_findings_are_counted_once_per_request_and_kind(run: Run) -> None:
    total = sum(sum(s.findings.values()) for s in engine_summaries(run.cells, run.requests))
    assert total == len(remarks(run.cells, run.requests))
    assert f" {total} findings" in " ".join(shown(run).split())
    [forgot] = [r for r in run.requests if r.engine_label == FORGETFUL.label and len(r.findings) > 1][:1]
    [summary] = engine_summaries((), [forgot])
    assert summary.findings == {FindingKind.UNEXPLAINED: 1}


def test_an_impossible_hit_is_not_an_unknown_one(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM], ["changed"])
    finding = Finding(kind=FindingKind.OUT_OF_RANGE, detail="hit 9999")
    probes = [r for r in run.requests if r.role == "probe"]
    bad = probes[0].model_copy(update={"hit_len": 9999, "ledger": (), "findings": (finding,)})
    text = " ".join(shown(replace(run, requests=(bad, *probes[1:]))).split())
    assert "1 of 7 requests gave a number out of range" in text
    assert "1 request with a number out of range" in text
    assert "unusable ! out_of_range" in text
    assert "neither hit nor start" not in text
    assert "without hit or start" not in text


def test_tokens_of_an_engine_without_a_law_are_not_unexplained(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [LLAMA_CPP], ["changed"])
    text = " ".join(shown(run).split())
    assert "0 of 7266 prompt tokens unexplained, 2051 tokens of engines that no law covers" in text
    assert "llama.cpp on tiny-qwen3: 2051 tokens that no law covers; nothing is claimed about them" in text
    assert engine_summaries(run.cells, run.requests)[0].unexplained is None


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize("full", [False, True])
def test_a_narrow_terminal_loses_nothing(tmp_path: Path, width: int, full: bool) -> None:
    one = sample_run(tmp_path / "one", [VLLM, FORGETFUL, LLAMA_CPP], ["changed", "ladder"], model="one")
    two = sample_run(tmp_path / "two", [SILENT], ["changed"], model="a/model-with-a-long-name")
    both = replace(one, cells=one.cells + two.cells, requests=one.requests + two.requests)
    narrow, wide = shown(both, width=width, full=full), shown(both, width=200, full=full)
    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow
    number = re.compile(r"(?<![\w.@-])\d+(?:\.\d+)?(?![\w.@-])")
    assert Counter(number.findall(narrow)) == Counter(number.findall(wide))
    letters = re.compile(r"[a-z_]")
    assert Counter(letters.findall(narrow)) == Counter(letters.findall(wide))
