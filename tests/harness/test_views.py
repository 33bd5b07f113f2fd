from __future__ import annotations

from pathlib import Path

import pytest
from sample_run import EDGES, FORGETFUL, SGLANG_1, SGLANG_16, VLLM, sample_run

from harness.views import folded, workload_views
from harness.wording import number, percent, plain, span


def test_ladders_of_different_edges_merge_by_length(tmp_path: Path) -> None:
    [view] = workload_views(sample_run(tmp_path, [VLLM, SGLANG_1, SGLANG_16], [EDGES]).requests)
    lengths = [send.requests[0].prompt_len for send in view.sends]
    assert lengths == sorted(lengths)
    by_name = {send.name: len(send.requests) for send in view.sends}
    assert (by_name["L=3 (2)"], by_name["L=31 (2)"], by_name["L=65"]) == (1, 2, 1)


@pytest.mark.parametrize("answered", [3, 5])
def test_a_configuration_that_stopped_early_keeps_the_order_of_the_others(tmp_path: Path, answered: int) -> None:
    run = sample_run(tmp_path, [VLLM, SGLANG_1], ["changed"])
    probes = [r for r in run.requests if r.role == "probe"]
    short = [r for r in probes if r.engine_label == VLLM.label][:answered]
    [view] = workload_views(short + [r for r in probes if r.engine_label == SGLANG_1.label])
    assert [send.name for send in view.sends] == ["A", "B", "B'", "A (2)", "A (3)", "B (2)", "B' (2)"]
    assert [len(send.requests) for send in view.sends] == [2] * answered + [1] * (7 - answered)


def test_a_send_that_others_skip_follows_the_one_it_followed(tmp_path: Path) -> None:
    requests = [r for r in sample_run(tmp_path, [VLLM, SGLANG_1], ["chat"]).requests if r.role == "probe"]
    turned = [r.model_copy(update={"prompt_len": 400 - r.prompt_len, "ledger": ()}) for r in requests]
    kept = [r for r in turned if not (r.engine_label == VLLM.label and r.label == "turn 2")]
    [view] = workload_views(kept)
    assert [send.name for send in view.sends] == ["turn 1", "turn 2", "turn 3"]


def test_repeats_fold_only_when_answered_alike(tmp_path: Path) -> None:
    alike, _ = folded(workload_views(sample_run(tmp_path / "a", [VLLM], ["ladder"]).requests)[0])
    assert ("L=33 (2-3)", "L=33") in [(name, send.requests[0].label) for name, send in alike]
    assert not [name for name, _ in alike if name == "L=33"]  # 28 cold sends are left out
    changed, left_out = folded(workload_views(sample_run(tmp_path / "b", [FORGETFUL], ["changed"]).requests)[0])
    assert [name for name, _ in changed] == ["A", "B", "B'", "A (2)", "A (3)", "B (2)", "B' (2)"]
    assert left_out == 0


def test_wording() -> None:
    assert plain("a\nb\x1b[0m") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[0m"
    assert [percent(None), percent(0), percent(1), percent(0.99999), percent(0.0001)] == [
        "?",
        "0.0 %",
        "100.0 %",
        ">99.9 %",
        "<0.1 %",
    ]
    assert (number(0, "finding"), number(1, "cell"), number(2, "cell")) == ("no findings", "1 cell", "2 cells")
    assert (span([3]), span([5, 3, 4])) == ("3", "3-5")
