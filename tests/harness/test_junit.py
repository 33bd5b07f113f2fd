from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from sample_run import ALL, FORGETFUL, LAW, LLAMA_CPP, SGLANG_1, SILENT, VLLM, sample_run
from typer.testing import CliRunner

from harness.brief import brief_markdown
from harness.cli import app
from harness.junit import junit_xml
from harness.overview import Overview, overview, overview_json
from harness.records import CellStatus
from harness.store import Run, load_run
from vocabulary.errors import ExitCode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    engines = (*ALL, FORGETFUL, SILENT)
    return sample_run(tmp_path_factory.mktemp("run"), engines, failed=["vllm block_size=7"])


@pytest.fixture(scope="module")
def cases(run: Run) -> dict[tuple[str, str], ET.Element]:
    root = ET.fromstring(junit_xml(run))
    return {(case.get("classname", ""), case.get("name", "")): case for case in root.iter("testcase")}


def test_there_is_a_case_per_cell_and_law(run: Run, cases: dict[tuple[str, str], ET.Element]) -> None:
    assert len(cases) == len(run.manifest.cells)
    assert (VLLM.label, "changed on tiny-qwen3 by vllm@0.32") in cases


def test_a_clean_cell_passes(cases: dict[tuple[str, str], ET.Element]) -> None:
    assert list(cases[(VLLM.label, "changed on tiny-qwen3 by vllm@0.32")]) == []


def test_a_failure_holds_the_ledger(cases: dict[tuple[str, str], ET.Element]) -> None:
    (failure,) = cases[(FORGETFUL.label, "changed on tiny-qwen3 by vllm@0.32")]
    assert failure.tag == "failure"
    assert failure.get("message") == "1 finding: unexplained"
    text = failure.text or ""
    assert "A (2): L 1038, P 1038, hit 0, start 0; the law says 1024" in text
    assert "ledger: [0, 1024) unexplained, [1024, 1037) granule, [1037, 1038) last_token" in text


def test_what_proves_nothing_does_not_pass(cases: dict[tuple[str, str], ET.Element]) -> None:
    assert cases[(LLAMA_CPP.label, "changed on tiny-qwen3")][0].tag == "skipped"
    assert "prediction" in cases[(LAW.label, "changed on tiny-qwen3 by sglang@0.5.23")][0].get("message", "")
    assert cases[(SILENT.label, "changed on tiny-qwen3")][0].tag == "error"
    assert "server ended with status 1" in cases[("vllm block_size=7", "changed on tiny-qwen3")][0].get("message", "")


def test_a_cell_that_was_killed_is_an_error(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM], ["changed"])
    (run.folder / run.manifest.cells[0] / "cell.json").unlink()
    killed = load_run(run.folder)
    (case,) = ET.fromstring(junit_xml(killed)).iter("testcase")
    assert case[0].tag == "error"
    assert "killed after 13 requests" in case[0].get("message", "")
    assert overview(killed).exit_code is ExitCode.INCONCLUSIVE


def test_counts_are_those_of_the_cases(run: Run, cases: dict[tuple[str, str], ET.Element]) -> None:
    root = ET.fromstring(junit_xml(run))
    for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        total = sum(case.find(tag) is not None for case in cases.values())
        assert int(root.get(plural, "")) == total == sum(int(suite.get(plural, "")) for suite in root)
    assert int(root.get("tests", "")) == len(cases)


def test_control_characters_of_names_are_legal_xml(tmp_path: Path) -> None:
    run = sample_run(tmp_path, [VLLM], ["changed"], model="a\x01<b>&\x00")
    assert "<b>" in "".join(case.get("name", "") for case in ET.fromstring(junit_xml(run)).iter("testcase"))


def test_the_overview_is_json_that_reads_back(run: Run) -> None:
    text = overview_json(run)
    assert Overview.model_validate_json(text) == overview(run)
    document = json.loads(text)
    assert document["schema"] == "hitparity.report/1"
    total = next(t for t in document["totals"] if t["label"] == FORGETFUL.label)
    assert total["unexplained_tokens"] == 1024
    assert sum(total["tokens_by_cause"].values()) == total["prompt_tokens"]
    assert [cell["cell"] for cell in document["cells"]] == list(run.manifest.cells)
    assert sum(cell["status"] != CellStatus.COMPLETE for cell in document["cells"]) == 1


def test_the_same_run_gives_the_same_bytes(run: Run) -> None:
    again = load_run(run.folder)
    assert junit_xml(again) == junit_xml(run)
    assert overview_json(again) == overview_json(run)
    assert brief_markdown(overview(again)) == brief_markdown(overview(run))


def test_the_short_markdown_answers_the_four_questions(run: Run) -> None:
    text = brief_markdown(overview(run))
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        "### What was compared",
        "### What differs",
        "### Why",
        "### What is not explained",
    ]
    assert "vllm forgetful on tiny-qwen3: 1024 tokens unexplained" in text
    assert len(text) < 10_000


def test_the_command_writes_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample_run(tmp_path / "run", [VLLM, SGLANG_1], ["changed"])
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    names = {"markdown": "a.md", "html": "a.html", "junit": "a.xml", "json": "a.json", "csv": "a.csv"}
    arguments = [text for option, name in names.items() for text in (f"--{option}", str(tmp_path / name))]
    result = CliRunner().invoke(app, ["report", str(run.folder), *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    assert (tmp_path / "a.xml").read_text() == junit_xml(run)
    assert (tmp_path / "a.md").read_text() == brief_markdown(overview(run))
    assert (tmp_path / "a-cells.csv").read_text().count("\n") == 3
    assert summary.read_text().startswith("before\n## hitparity sample\n")
    assert not (run.folder / "report").exists()


def test_tables_can_be_of_many_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sample_run(tmp_path / "sample" / name, [VLLM], ["changed"])
    out = tmp_path / "all.csv"
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--csv", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    assert out.read_text().count("\n") == 27
