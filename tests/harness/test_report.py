from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from sample_run import ALL, FORGETFUL, LLAMA_CPP, SGLANG_1, SILENT, VLLM, Played, sample_run

from harness.experiment import Checks
from harness.report import escape, write_report
from harness.store import Run, load_run
from vocabulary.errors import UsageError


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    engines = (*ALL, FORGETFUL, SILENT)
    return sample_run(tmp_path_factory.mktemp("run"), engines, failed=["vllm block_size=7"])


@pytest.fixture(scope="module")
def report(run: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(run, tmp_path_factory.mktemp("report"))[0].read_text(encoding="utf-8")


def part(report: str, heading: str) -> str:
    return report.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def test_the_files_are_those_named_and_linked(run: Run) -> None:
    paths = write_report(run)
    folder = run.folder / "report"
    names = {path.name for path in paths}
    assert {"report.md", "staircase.svg", "staircase.png", "ledger-changed.svg", "ledger-ladder.png"} <= names
    assert {path.name for path in folder.iterdir()} == names
    linked = set(re.findall(r"\]\(([^)#]+)\)", (folder / "report.md").read_text(encoding="utf-8")))
    assert linked == {name for name in names if name.endswith(".svg")}


def test_what_was_compared_comes_first(report: str) -> None:
    found = part(report, "What was compared")
    assert "Models: tiny-qwen3." in found
    assert "cores 2" in found
    assert "| vllm block_size=32 | vllm | 0.32.0 | launch, served | cpu float32 | 32 | vllm@0.32 |" in found
    assert (
        "| reference as vllm@0.32 | reference | 0.1.0 | worker, served | cpu float32 | 16 | vllm@0.32 (emulated) |"
        in found
    )
    assert "| vllm block_size=7 | vllm | ? | did not start | - | ? | ? |" in found


def test_what_differs_is_told_with_the_causes(report: str) -> None:
    found = part(report, "What differs")
    assert "**chat on tiny-qwen3**: hits differ in 2 of 3 sends, by up to 51 tokens" in found
    assert "law sglang@0.5.23 256 (granule 51, novel 21)" in found


def test_causes_add_up_to_the_prompts(run: Run, report: str) -> None:
    lines = [cells(line) for line in part(report, "Why").splitlines() if line.startswith("|")]
    head, values = lines[0], {line[0]: line for line in lines[2:]}
    numbers = [int(value) for value in values[SGLANG_1.label][1 : head.index("share reused")]]
    assert numbers[0] == sum(numbers[1:])
    assert numbers[1] == sum(
        r.hit_len or 0 for r in run.requests if r.engine_label == SGLANG_1.label and r.role == "probe"
    )
    assert set(values[SILENT.label][2:]) == {"?", "-"}


def test_what_is_not_explained_is_said(report: str) -> None:
    found = part(report, "What is not explained")
    assert "vllm forgetful on tiny-qwen3: 1024 tokens" in found
    assert "llama.cpp on tiny-qwen3: 2051 tokens that no law covers; nothing is claimed about them" in found
    assert "silent on tiny-qwen3: 94 of 94 requests showed neither hit nor start" in found
    assert "failed after 0 requests" in found


def test_a_clean_run_says_that_nothing_is_left(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM, SGLANG_1], ["changed"])
    report = write_report(run)[0].read_text(encoding="utf-8")
    assert part(report, "What is not explained").strip() == (
        "Nothing: every recomputed token has a cause, and there is no finding."
    )
    assert part(report, "Findings").strip() == "None."


def test_every_request_and_finding_is_listed(run: Run, report: str) -> None:
    listed = [cells(line) for line in part(report, "Every request").splitlines() if line.startswith("| ")]
    assert len([line for line in listed if line[0] not in ("send", "---")]) == sum(
        r.role == "probe" for r in run.requests
    )
    assert ["B", "1038", "1026", "llama.cpp", "1026", "?", "12", "2.1", r"reused 1026 \| novel 12"] in listed
    assert "A (2): **unexplained**: hit 0, the law vllm@0.32 says 1024; start 0" in part(report, "Findings")


def test_hits_are_shown_by_send_and_engine(report: str) -> None:
    lines = [cells(line) for line in part(report, "Hits").splitlines() if line.startswith("| ")]
    assert ["B'", "1038", "0", "17", "16", "17", "16", "0", "0", "?"] in lines
    assert ["A (2)", "1038", "1024", "1037", "1024", "17", "1024", "1024", "0 !", "?"] in lines
    assert all(len(line) == 10 for line in lines)


def test_only_checks_that_were_made_are_claimed(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM], ["changed"], checks=Checks(verify_reset=False, control=False))
    measured = part(write_report(run)[0].read_text(encoding="utf-8"), "How it was measured")
    assert "Resets were not verified." in measured
    assert "Warm outputs were not compared with cold ones." in measured


def test_limits_name_laws_that_are_missing_and_notes(report: str) -> None:
    found = part(report, "Limits")
    assert "No law covers: llama.cpp, silent." in found
    assert f"llama.cpp: {LLAMA_CPP.notes[0]}" in found


def test_the_same_run_gives_the_same_bytes_wherever_it_lies(tmp_path: Path) -> None:
    written = []
    for name in ("here", "there"):
        run = sample_run(tmp_path / name, [VLLM, FORGETFUL], ["changed", "chat"])
        with (run.folder / run.manifest.cells[0] / "requests.jsonl").open("a") as file:
            file.write('{"torn')
        written.append(write_report(load_run(run.folder)))
    assert [path.name for path in written[0]] == [path.name for path in written[1]]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
    assert "is torn" in part(written[0][0].read_text(encoding="utf-8"), "Limits")
    assert str(tmp_path) not in written[0][0].read_text(encoding="utf-8")


def test_names_cannot_break_tables_headings_or_code(tmp_path: Path) -> None:
    odd = Played("|pipe| <b> *x*\n# no", "vllm", "0.32.0", "vllm@0.32", {"block_size": 32}, notes=("```",))
    report = write_report(sample_run(tmp_path, [odd, VLLM], ["changed"], model="../[a](b)|_m_|"))[0].read_text(
        encoding="utf-8"
    )
    label = "\\|pipe\\| \\<b\\> \\*x\\*\N{REPLACEMENT CHARACTER}\\# no"
    assert f"| {label} | vllm | 0.32.0 |" in report
    assert r"### changed on ../\[a\](b)\|\_m\_\|" in report
    assert "\n# no" not in report
    assert all(
        line.count("```") == 0 or line in ("```json", "```") for line in report.splitlines() if "\\`" not in line
    )


def test_two_models_get_figures_of_their_own(tmp_path: Path) -> None:
    one = sample_run(tmp_path / "one", [VLLM], ["ladder"], model="m/one")
    two = sample_run(tmp_path / "two", [VLLM], ["ladder"], model="m/two")
    both = Run(tmp_path, one.manifest, one.cells + two.cells, one.requests + two.requests)
    names = [path.name for path in write_report(both) if path.suffix == ".svg"]
    own = ["staircase.svg", "ledger-ladder-one.svg", "staircase-ladder-two.svg", "ledger-ladder-two.svg"]
    assert names == [*own, "savings.svg"]


def test_cells_that_never_ran_are_on_the_first_screen(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM], ["changed"], failed=["sglang"])
    cells = (*run.manifest.cells, "cell-9")
    run = replace(run, manifest=run.manifest.model_copy(update={"cells": cells}))
    report = write_report(run)[0].read_text(encoding="utf-8")
    first = report.split("\n## ", 1)[0]
    assert "2 of 3 planned cells not run or unfinished" in first
    assert "\n\n- sglang, changed on tiny-qwen3: failed after 0 requests: the server ended with status 1" in first
    assert "\n- cell-9: not run\n" in first
    assert "Nothing: every" not in report


def test_a_run_in_which_nothing_started_has_a_report(tmp_path: Path) -> None:
    report = write_report(sample_run(tmp_path, [], failed=["vllm"]))[0].read_text(encoding="utf-8")
    assert "No request was answered." in report
    assert "nothing was measured" in report
    assert "Nothing: every" not in report
    assert "the server ended with status 1" in report


def test_a_folder_that_cannot_be_written_is_a_message(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"the report cannot be written: .*; choose another folder"):
        write_report(run, tmp_path / "file" / "report")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("last_token 1", "last_token 1"), ("_x_", r"\_x\_"), ("a|b", r"a\|b"), ("<i>", r"\<i\>"), ("`", r"\`")],
)
def test_escaping(text: str, escaped: str) -> None:
    assert escape(text) == escaped
