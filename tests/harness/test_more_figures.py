"""The figures beside staircase and ledger: what is drawn is what the records hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from sample_run import ALL, FORGETFUL, LLAMA_CPP, SGLANG_16, SILENT, VLLM, sample_run

from harness.drawing import save_figure
from harness.figures import (
    heat_map,
    hit_by_repetition,
    ledger_difference,
    position_strip,
    resume_figure,
    resume_points,
    ttft_over_prefix,
    ttft_slopes,
)
from harness.records import RequestRecord, Role
from harness.store import Run
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return sample_run(tmp_path_factory.mktemp("run"), (*ALL, FORGETFUL, SILENT))


def of(run: Run, label: str, workload: str | None = None) -> list[RequestRecord]:
    return [r for r in run.requests if r.engine_label == label and workload in (None, r.workload)]


def texts(figure: Figure | None) -> list[str]:
    assert figure is not None
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]


def test_a_strip_marks_every_send_at_its_start(run: Run) -> None:
    requests = of(run, VLLM.label, "ladder")
    figure = position_strip(requests)
    assert figure is not None
    drawn = sorted(int(line.get_xdata()[0]) for line in figure.axes[0].get_lines())  # type: ignore[index]
    shown = {label for label in texts(figure) if VLLM.label in label}
    expected = [r.position_start for r in requests if r.role is Role.PROBE and f"{r.label}, {VLLM.label}" in shown]
    assert drawn == sorted(start for start in expected if start is not None)


def test_no_strip_without_repeats(run: Run) -> None:
    assert position_strip(of(run, VLLM.label, "chat")) is None
    assert position_strip(of(run, SILENT.label)) is None


def test_hits_by_repetition_come_from_the_records(run: Run) -> None:
    requests = of(run, VLLM.label, "ladder")
    figure = hit_by_repetition(requests)
    assert figure is not None
    by_length: dict[int, list[int | None]] = {}
    for request in requests:
        if request.role is Role.PROBE:
            by_length.setdefault(request.prompt_len, []).append(request.hit_len)
    drawn = {tuple(int(y) for y in line.get_ydata()) for line in figure.axes[0].get_lines()}  # type: ignore[union-attr]
    assert drawn
    assert drawn <= {tuple(hits) for hits in by_length.values()}  # type: ignore[arg-type]
    assert hit_by_repetition(of(run, VLLM.label, "chat")) is None


def test_heat_map_counts_and_hatches_what_is_unknown(run: Run) -> None:
    shown = texts(heat_map(run.requests))
    probes = [r for r in of(run, VLLM.label, "ladder") if r.role is Role.PROBE]
    reused, prompt = sum(r.hit_len or 0 for r in probes), sum(r.prompt_len for r in probes)
    assert f"{reused:,}\nof {prompt:,}" in shown
    figure = heat_map(of(run, SILENT.label))
    assert "no ledger" in texts(figure)
    assert figure is not None
    assert {p.get_hatch() for p in figure.axes[0].patches if isinstance(p, Rectangle)} == {"xxx"}
    assert heat_map([]) is None


def test_heat_map_colours_lawless_and_explained_cells_differently(run: Run) -> None:
    def colour(label: str) -> object:
        figure = heat_map(of(run, label, "changed"))
        assert figure is not None
        return figure.axes[0].patches[0].get_facecolor()

    assert colour(VLLM.label) != colour(LLAMA_CPP.label)


def test_slopes_pair_cold_with_warm(run: Run) -> None:
    figure = ttft_slopes(of(run, VLLM.label, "changed"), floor_ms=0.5)
    assert "client floor" in texts(figure)
    assert ttft_slopes([r for r in run.requests if r.hit_len == 0]) is None


def test_ttft_over_prefix_needs_two_lengths(run: Run) -> None:
    assert ttft_over_prefix(of(run, VLLM.label, "ladder")) is not None
    assert ttft_over_prefix(of(run, VLLM.label, "changed")) is None


def test_ledger_difference_adds_up(run: Run) -> None:
    figure = ledger_difference(of(run, VLLM.label, "changed"), of(run, SGLANG_16.label, "changed"))
    assert figure is not None
    widths = [p.get_width() for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    assert widths
    assert sum(widths) == 0  # the prompts are as long as they were
    assert ledger_difference(of(run, VLLM.label), of(run, VLLM.label)) is None


def test_resume_points_of_blocks(tmp_path: Path) -> None:
    law = make_law("vllm@0.32", {"block_size": 16})
    request = TokenRequest(request_id="r", ids=tuple(range(64)))
    law.send(request)
    law.finish(request, (1,))
    found = resume_points("blocks of 16", law, range(64))
    assert found.points == (16, 32, 48, 64)
    assert dict(found.hits)[47] == 32
    assert [path.exists() for path in save_figure(resume_figure([found]), tmp_path, "resume")] == [True, True]


def test_asking_leaves_the_law_as_it_was() -> None:
    law = make_law("sglang@0.5.23", {"page_size": 16})
    request = TokenRequest(request_id="r", ids=tuple(range(64)))
    law.send(request)
    law.finish(request, (1,))
    resume_points("pages", law, range(64), step=5)
    law.check_integrity()
    again = TokenRequest(request_id="again", ids=tuple(range(64)))
    assert law.send(again).ledger.by_cause().keys() == {"reused", "granule", "last_token"}
