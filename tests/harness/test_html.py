from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, missing
from sample_run import ALL, FORGETFUL, SILENT, VLLM, sample_run

from harness.page import page
from harness.records import Role
from harness.store import Run, load_run

needs_browser = pytest.mark.skipif(bool(missing()), reason=missing())
NASTY = '<img src=x onerror="window.hurt=1"></script><script>window.hurt=1</script>&amp;'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    engines = (*ALL, FORGETFUL, SILENT)
    return sample_run(tmp_path_factory.mktemp("run"), engines, failed=["vllm block_size=7"])


@pytest.fixture(scope="module")
def html(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(run), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def shown(browser: Browser) -> list[list[str]]:
    """The texts of the rows of the table of requests."""
    rows: list[list[str]] = browser.run(
        'return [...document.querySelectorAll("#table tr.row")].map(r => [...r.cells].map(c => c.innerText.trim()))'
    )
    return rows


def choose(browser: Browser, name: str, value: str | bool) -> None:
    browser.run(
        """const control = document.getElementById("filters").elements[arguments[0]];
        if (control.type === "checkbox") control.checked = arguments[1]; else control.value = arguments[1];
        control.dispatchEvent(new Event("change", { bubbles: true }));""",
        name,
        value,
    )


class Tags(HTMLParser):
    """Open tags that were never closed, and everything an address stands in."""

    VOID = frozenset({"meta", "input", "link", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}>"


def test_the_page_is_well_formed_and_loads_nothing(html: Path) -> None:
    tags = Tags()
    tags.feed(html.read_text(encoding="utf-8"))
    assert tags.open == []
    assert tags.addresses
    assert all(address.startswith("#") for address in tags.addresses)
    assert len(tags.ids) == len(set(tags.ids))


def test_the_same_run_gives_the_same_bytes_wherever_it_lies(tmp_path: Path) -> None:
    first, second = (page(sample_run(tmp_path / name, [VLLM, FORGETFUL], ["changed"])) for name in ("here", "there"))
    assert first == second
    assert page(load_run(tmp_path / "here")) == first
    assert str(tmp_path) not in first


def test_the_first_screen_answers_without_a_script(html: Path) -> None:
    text = html.read_text(encoding="utf-8").split('<section id="requests">')[0]
    assert "1024 of 121632 prompt tokens unexplained" in text
    assert "hits differ in 6 of 7 sends, by up to 1037 tokens" in text
    assert "vllm forgetful on tiny-qwen3: 1024 tokens unexplained" in text
    assert "Findings, and incomplete" in text


def test_names_from_outside_are_text(run: Run) -> None:
    spoiled = replace(
        run,
        manifest=run.manifest.model_copy(update={"experiment": NASTY}),
        cells=tuple(cell.model_copy(update={"engine_label": NASTY, "why": NASTY}) for cell in run.cells),
        requests=tuple(r.model_copy(update={"label": NASTY, "engine_label": NASTY}) for r in run.requests),
        remarks=(NASTY,),
    )
    text = page(spoiled)
    assert "<img" not in text
    assert text.count("</script>") == 2


@pytest.fixture(scope="module")
def large(run: Run) -> Run:
    """5,000 requests: the run's own, again and again under other names."""
    requests = run.requests * (5000 // len(run.requests) + 1)
    return replace(
        run,
        requests=tuple(r.model_copy(update={"request_id": f"{r.request_id}-{i}"}) for i, r in enumerate(requests)),
    )


def test_five_thousand_requests_stay_small(large: Run) -> None:
    assert len(large.requests) >= 5000
    assert len(page(large)) < 1_000_000


@needs_browser
def test_no_request_is_missing_and_nothing_complains(browser: Browser, html: Path, run: Run) -> None:
    browser.open(html)
    probes = sum(r.role is Role.PROBE for r in run.requests)
    assert browser.run('return document.getElementById("shown").innerText') == (
        f"{probes} of {len(run.requests)} requests"
    )
    assert len(shown(browser)) == 200
    while browser.run('const b = document.getElementById("more"); b.click(); return !b.hidden'):
        pass
    assert len(shown(browser)) == probes
    assert browser.messages() == []


@needs_browser
def test_one_click_leads_from_a_square_to_its_ledgers(browser: Browser, html: Path, run: Run) -> None:
    browser.open(html)
    cell = next(c for c in run.cells if c.engine_label == FORGETFUL.label and c.workload == "changed")
    browser.run('document.querySelector(`.matrix a[href="#cell=${arguments[0]}"]`).click()', cell.cell)
    time.sleep(0.2)
    rows = shown(browser)
    assert len(rows) == 7
    assert {row[0] for row in rows} == {FORGETFUL.label}
    (wrong,) = [row for row in rows if row[5].endswith("!")]
    assert wrong[2:8] == ["A (2)", "1038", "1038", "0 !", "1024", "0"]
    assert wrong[9] == "unexplained 1024, granule 13, last_token 1"
    browser.run('document.querySelector("#table tr.row.marked").click()')
    detail = browser.run('return document.querySelector("#table tr.detail").innerText')
    assert "[0, 1024)" in detail
    assert "unexplained: hit 0, the law vllm@0.32 says 1024" in detail
    browser.run('document.querySelector("#table tr.row.marked").click()')
    assert browser.run('return document.querySelector("#table tr.detail")') is None


@needs_browser
def test_a_link_to_a_cell_opens_it(browser: Browser, html: Path, run: Run) -> None:
    browser.open(html.parent / "report.html", f"#cell={run.manifest.cells[0]}")
    browser.run("location.reload()")
    assert {(row[0], row[1]) for row in shown(browser)} == {(VLLM.label, "changed on tiny-qwen3")}


@needs_browser
def test_filters_by_engine_workload_and_cause(browser: Browser, html: Path, run: Run) -> None:
    browser.open(html)
    browser.run('history.replaceState(null, "", "#"); location.reload()')
    choose(browser, "label", VLLM.label)
    choose(browser, "workload", "ladder on tiny-qwen3")
    choose(browser, "cause", "granule")
    expected = [
        r
        for r in run.requests
        if r.engine_label == VLLM.label
        and r.workload == "ladder"
        and r.role is Role.PROBE
        and any(e.cause.value == "granule" for e in r.ledger)
    ]
    rows = shown(browser)
    assert [row[3] for row in rows] == [str(r.prompt_len) for r in expected]
    assert all("granule" in row[9] for row in rows)
    choose(browser, "marked", True)
    assert shown(browser) == []
    browser.run('document.querySelector("#filters button").click()')
    time.sleep(0.2)
    assert "of" in browser.run('return document.getElementById("shown").innerText')
    assert len(shown(browser)) == 200


@needs_browser
def test_columns_sort_with_the_unknown_last(browser: Browser, html: Path) -> None:
    browser.open(html)
    browser.run('history.replaceState(null, "", "#"); location.reload()')
    click = "document.querySelectorAll('#table th button')[5].click()"
    browser.run(click)
    browser.run('const b = document.getElementById("more"); while (!b.hidden) b.click()')
    for descending in (False, True):
        hits = [row[5].removesuffix(" !") for row in shown(browser)]
        known = [int(hit) for hit in hits if hit != "?"]
        assert known == sorted(known, reverse=descending)
        assert set(hits[len(known) :]) == {"?"}
        assert browser.run("return document.querySelectorAll('#table th')[5].ariaSort") == (
            "descending" if descending else "ascending"
        )
        browser.run(click)
        browser.run('const b = document.getElementById("more"); while (!b.hidden) b.click()')


@needs_browser
def test_a_name_from_outside_runs_nothing(browser: Browser, run: Run, tmp_path: Path) -> None:
    spoiled = replace(
        run,
        manifest=run.manifest.model_copy(update={"experiment": NASTY}),
        cells=tuple(cell.model_copy(update={"engine_label": NASTY}) for cell in run.cells),
        requests=tuple(r.model_copy(update={"label": NASTY, "engine_label": NASTY}) for r in run.requests),
    )
    path = tmp_path / "nasty.html"
    path.write_text(page(spoiled), encoding="utf-8")
    browser.open(path)
    browser.run('document.querySelector("#table tr.row").click()')
    assert browser.run("return window.hurt ?? null") is None
    assert shown(browser)[0][0] == NASTY


@needs_browser
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_wide_and_narrow_windows(html: Path, width: int) -> None:
    with Browser(width=max(width, 500)) as browser:
        browser.open(html)
        if width < 500:  # a window of Chromium is not narrower; a frame is
            browser.run("document.body.style.width = arguments[0] + 'px'", width)
        inner = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert inner[0] <= inner[1]
        assert browser.screenshot().startswith(b"\x89PNG")


@needs_browser
def test_five_thousand_requests_are_quick(browser: Browser, large: Run, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(page(large), encoding="utf-8")
    browser.open(path)
    took: Any = browser.run(
        """const from = performance.now();
        document.querySelectorAll("#table th button")[8].click();
        document.querySelector("#table").getBoundingClientRect();
        return performance.now() - from"""
    )
    assert re.match(r"\d+ of 5\d\d\d requests", browser.run('return document.getElementById("shown").innerText'))
    assert took < 3000  # ms; some 100 on an idle machine
