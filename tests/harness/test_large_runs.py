"""Reports of runs that are too large to be listed whole: what is cut is said, and nothing is lost from the totals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from browser import Browser, missing
from rich.console import Console
from sample_run import ALL, FORGETFUL, sample_run

from harness import page as page_module
from harness import report as report_module
from harness import table as table_module
from harness.page import page
from harness.report import REPORT, write_report
from harness.store import Run
from harness.table import run_tables, widened
from harness.views import workload_views
from harness.wording import is_marked
from vocabulary.ledger import Cause

LIMIT = 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return sample_run(tmp_path_factory.mktemp("run"), (*ALL, FORGETFUL))


def data(html: str) -> dict[str, list[list[object]]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    document: dict[str, list[list[object]]] = json.loads(found[1])
    return document


def without_requests(html: str) -> str:
    html = re.sub(r'<p class="hint" id="left-out">.*?</p>\n', "", html)
    return re.sub(r'"requests":\[.*?,"leftOut":\d+', "", html)


def test_page_keeps_cells_totals_and_marked_requests(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = page(run)
    assert "left-out" not in whole
    assert data(whole)["leftOut"] == 0
    monkeypatch.setattr(page_module, "LEDGERS", LIMIT)
    cut = page(run)
    assert f"<b>{LIMIT} of {len(run.requests)} requests are on this page</b>" in cut
    assert "requests.jsonl" in cut
    assert data(cut)["leftOut"] == len(run.requests) - LIMIT
    assert without_requests(cut) == without_requests(whole)  # squares, bars, totals, findings, cells
    kept = data(cut)["requests"]
    marked = sum(is_marked(request) for request in run.requests)
    assert len(kept) == LIMIT
    assert 0 < marked < LIMIT
    assert sum(bool(int(str(row[11])) & 2) for row in kept) == marked
    rest = iter(data(whole)["requests"])
    assert all(row in rest for row in kept)  # in their order


def test_markdown_says_what_it_leaves_out(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "save_figure", lambda *_: [])  # slow, and the same with and without a limit
    write_report(run, tmp_path / "whole")
    monkeypatch.setattr(report_module, "LEDGERS", LIMIT)
    monkeypatch.setattr(report_module, "ROWS", 2)
    monkeypatch.setattr(report_module, "FINDINGS", 0)
    write_report(run, tmp_path / "cut")
    whole, cut = ((tmp_path / name / REPORT).read_text(encoding="utf-8") for name in ("whole", "cut"))
    assert "requests are listed" not in whole
    ledgers = cut.partition("## Every request")[2].partition("## Findings")[0]
    asked = sum(len(view.requests) for view in workload_views(run.requests))
    counts = [(int(a), int(b)) for a, b in re.findall(r"(\d+) of (\d+) requests are listed", ledgers)]
    assert sum(listed for listed, _ in counts) == LIMIT
    assert sum(of for _, of in counts) == asked
    assert len(re.findall(r"^\| (?!send|---)", ledgers, re.MULTILINE)) == LIMIT
    assert re.search(r"^\d+ rows left out", cut, re.MULTILINE)
    assert re.search(r"^- \d+ more; `hitparity report RUN --json F`", cut, re.MULTILINE)
    assert cut.partition("## Hits")[0] == whole.partition("## Hits")[0]  # totals by cause, and what differs
    unexplained = sum(r.by_cause().get(Cause.UNEXPLAINED, 0) for r in run.requests if r.role == "probe")
    assert unexplained
    assert f"{unexplained} tokens" in cut


def test_terminal_says_what_it_leaves_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SHOWN_ROWS", 2)
    monkeypatch.setattr(table_module, "SHOWN_FINDINGS", 0)
    tables = run_tables(run.cells, run.requests)
    console = widened(Console(record=True, width=400), tables)
    for table in tables:
        console.print(table)
    text = console.export_text()
    assert re.search(r"; 2 of \d+ rows, those that differ first; --full shows all", text)
    assert re.search(r"! \d+ more findings; --full shows all", text)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_browser_shows_what_is_left_out(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "LEDGERS", LIMIT)
    (tmp_path / "report.html").write_text(page(run), encoding="utf-8")
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        text = browser.run('return document.getElementById("shown").textContent')
        assert f"of {LIMIT} requests on this page ({len(run.requests) - LIMIT} more are not)" in text
        assert browser.messages() == []
