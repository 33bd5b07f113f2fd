from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from sample_run import ALL, FORGETFUL, LAW, LLAMA_CPP, SGLANG_16, SILENT, VLLM, Played, sample_run

from harness.drawing import CAUSE_STYLES, engine_colour, save_figure, spread
from harness.figures import MAX_BARS, ledger_bars, staircase
from harness.records import RequestRecord
from harness.store import Run
from vocabulary.ledger import Cause


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return sample_run(tmp_path_factory.mktemp("run"), (*ALL, FORGETFUL, SILENT))


def of(run: Run, workload: str, *engines: Played) -> list[RequestRecord]:
    labels = {engine.label for engine in engines} or {r.engine_label for r in run.requests}
    return [r for r in run.requests if r.workload == workload and r.engine_label in labels]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]


def test_a_staircase_draws_the_observed_hits_and_the_law_dotted(run: Run) -> None:
    requests = of(run, "ladder", VLLM, LLAMA_CPP)
    [axes] = staircase(requests).axes
    expected = sorted(
        {(r.prompt_len, r.hit_len) for r in requests if r.engine_label == VLLM.label and r.repetition == 1}
    )
    blue = [line for line in axes.get_lines() if line.get_color() == engine_colour("vllm")]
    points = {str(line.get_marker()): np.asarray(line.get_xydata()) for line in blue}
    assert all(np.isnan(xy).any() for xy in points.values())  # nothing is drawn between lengths that were not sent
    drawn = {marker: xy[~np.isnan(xy[:, 0])].astype(int).tolist() for marker, xy in points.items()}
    assert drawn == {"o": [*map(list, expected)], "None": [*map(list, expected)]}
    assert {line.get_linestyle() for line in blue} == {"-", "--"}  # matplotlib names every dash pattern "--"
    assert {VLLM.label, LLAMA_CPP.label} <= set(texts(staircase(requests)))


def test_equal_lines_are_kept_apart(run: Run) -> None:
    figure = staircase(of(run, "ladder", VLLM, FORGETFUL))
    lines = [line for line in figure.axes[0].get_lines() if line.get_marker() != "None"]
    assert len({line.get_marker() for line in lines}) == len(lines) == 2
    shown = [tuple(line.get_transform().transform((100, 50))) for line in lines]
    assert shown[0] != shown[1]


def test_many_configurations_get_a_panel_per_engine(run: Run) -> None:
    panels = [axis.get_title(loc="left") for axis in staircase(of(run, "ladder")).axes if axis.get_visible()]
    assert panels == ["vllm", "sglang", "llama.cpp", "reference"]


def test_a_prediction_has_no_observed_line(run: Run) -> None:
    [axes] = staircase(of(run, "ladder", LAW)).axes
    assert all(line.get_marker() == "None" for line in axes.get_lines())


def test_an_engine_that_reports_nothing_is_named(run: Run) -> None:
    assert f"{SILENT.label} (no hits reported)" in texts(staircase(of(run, "ladder", SILENT, VLLM)))


def test_bars_are_as_long_as_their_intervals(run: Run) -> None:
    requests = of(run, "changed", SGLANG_16)
    bars = [p for p in ledger_bars(requests).axes[0].patches if isinstance(p, Rectangle) and p.get_fill()]
    drawn = [(int(bar.get_x()), int(bar.get_x() + bar.get_width())) for bar in bars]
    shown = [r for r in requests if r.role == "probe" and (r.label, r.repetition) not in {("A", 2)}]
    folded_repeats = [(e.start, e.end) for r in shown for e in r.ledger]
    assert drawn == folded_repeats


def test_the_legend_names_only_causes_that_occur(run: Run) -> None:
    figure = ledger_bars(of(run, "chat"))
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {"reused", "novel", "granule"}


def test_bars_carry_their_numbers_and_findings(run: Run) -> None:
    found = texts(ledger_bars(of(run, "changed", VLLM, FORGETFUL, SILENT)))
    assert "reused 1024 | granule 2 | novel 12" in found
    assert "unexplained 1024 | granule 13 | last_token 1  !" in found
    assert "?" in found


def test_a_long_workload_shows_the_sends_that_differ_most(run: Run) -> None:
    figure = ledger_bars(of(run, "ladder"))
    names = [text for text in texts(figure) if text in {e.label for e in (*ALL, FORGETFUL, SILENT)}]
    assert 0 < len(names) <= MAX_BARS
    assert "(7 of 28 sends)" in figure.legends[0].get_title().get_text()


def test_every_cause_looks_different() -> None:
    assert set(CAUSE_STYLES) == set(Cause)
    assert len(set(CAUSE_STYLES.values())) == len(Cause)


def test_no_requests_make_an_empty_figure(tmp_path: Path) -> None:
    assert save_figure(staircase([]), tmp_path, "a")[0].stat().st_size > 0
    assert save_figure(ledger_bars([]), tmp_path, "b")[0].stat().st_size > 0


@pytest.mark.parametrize("draw", [staircase, ledger_bars])
def test_the_same_records_give_the_same_bytes(run: Run, tmp_path: Path, draw: object) -> None:
    assert callable(draw)
    first = save_figure(draw(of(run, "ladder")), tmp_path / "1", "figure")
    second = save_figure(draw(of(run, "ladder")), tmp_path / "2", "figure")
    assert [path.suffix for path in first] == [".svg", ".png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_callers_settings_stay(run: Run, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    save_figure(ledger_bars(of(run, "chat")), tmp_path, "figure")
    assert dict(mpl.rcParams) == before


def test_names_are_not_formulas(tmp_path: Path) -> None:
    odd = Played("$x^{", "vllm", "0.32.0", "vllm@0.32", {"block_size": 32})
    run = sample_run(tmp_path / "run", [odd], ["changed", "ladder"], model="$m$")
    save_figure(staircase(of(run, "ladder")), tmp_path, "a")
    save_figure(ledger_bars(of(run, "changed")), tmp_path, "b")


def test_labels_keep_their_order_and_distance() -> None:
    assert spread([5, 5, 5], 2, low=0, high=10) == [5, 7, 9]
    assert spread([9, 10, 10], 2, low=0, high=10) == [6, 8, 10]
    assert spread([3, 1], 1, low=0, high=10) == [3, 1]
