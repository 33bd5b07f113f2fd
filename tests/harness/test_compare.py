from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_run import FORGETFUL, LLAMA_CPP, SGLANG_1, SGLANG_16, SILENT, VLLM, Played, sample_run
from typer.testing import CliRunner

from harness.cli import app
from harness.compare.changes import ledger_words, send_change
from harness.compare.comparison import Comparison, compare
from harness.compare.likeness import Subject
from harness.compare.show import change_groups, comparison_json, comparison_markdown
from harness.compare.sides import Side, read_side
from harness.records import CellManifest, RequestRecord, Role
from harness.statistics import Verdict
from harness.store import Run, load_run
from vocabulary.errors import ExitCode, UsageError
from vocabulary.ledger import Cause, Interval

VERSION, OPTIONS, ENGINE = (frozenset({subject}) for subject in Subject)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    engines = [VLLM, SGLANG_1, SGLANG_16, FORGETFUL, LLAMA_CPP, SILENT]
    return sample_run(tmp_path_factory.mktemp("runs") / "one", engines, ["changed", "ladder", "chat"])


def side(run: Run, played: Played | None = None) -> Side:
    return Side("side", run, played.label if played else None)


def altered(
    run: Run,
    *,
    cell: Callable[[CellManifest], dict[str, Any]] = lambda cell: {},
    request: Callable[[RequestRecord], dict[str, Any]] = lambda request: {},
    machine: dict[str, Any] | None = None,
) -> Run:
    """The run with other fields, as another version, machine or day would have written it."""
    manifest = run.manifest.model_copy(update={"machine": {**run.manifest.machine, **(machine or {})}})
    return replace(
        run,
        manifest=manifest,
        cells=tuple(c.model_copy(update=cell(c)) for c in run.cells),
        requests=tuple(r.model_copy(update=request(r)) for r in run.requests),
    )


def part(run: Run, workload: str) -> Run:
    """The cells of one workload."""
    cells = tuple(cell for cell in run.cells if cell.workload == workload)
    kept = tuple(cell.cell for cell in cells)
    return replace(
        run,
        manifest=run.manifest.model_copy(update={"cells": kept}),
        cells=cells,
        requests=tuple(r for r in run.requests if r.cell in kept),
    )


def slowed(run: Run, factor: float, noise: float = 0.03, seed: int = 0) -> Run:
    generator = np.random.default_rng(seed)

    def slow(request: RequestRecord) -> dict[str, Any]:
        if request.ttft_ns is None:
            return {}
        return {"ttft_ns": round(request.ttft_ns * factor * float(np.exp(generator.normal(0, noise))))}

    return altered(run, request=slow, machine={"clock_source": "tsc"})


def test_a_run_passes_against_itself(run: Run) -> None:
    seen = compare(side(run, VLLM), side(run, VLLM))
    assert seen.verdict is Verdict.PASS
    assert seen.exit_code is ExitCode.CLEAN
    assert seen.why == ("all integers of 94 sends are the same",)
    assert [cell.sends for cell in seen.cells] == [7, 84, 3]


def test_two_runs_match_by_configuration_model_and_workload(run: Run, tmp_path: Path) -> None:
    again = sample_run(tmp_path, [SGLANG_1, VLLM], ["ladder", "changed"])
    with pytest.raises(UsageError, match="engine configurations differ"):
        compare(side(run), side(again))
    whole = sample_run(tmp_path / "two", [VLLM, SGLANG_1], ["changed", "ladder"])
    seen = compare(side(again), side(whole))
    assert seen.verdict is Verdict.PASS
    assert {cell.where.split(",")[0] for cell in seen.cells} == {VLLM.label, SGLANG_1.label}


def test_a_lost_hit_fails_with_the_words_and_the_finding(run: Run) -> None:
    seen = compare(side(run, VLLM), side(run, FORGETFUL))
    assert seen.verdict is Verdict.FAIL
    assert seen.why[0] == "1 send of 94 changed: 1 reuse less, by up to 1024 tokens"
    (change,) = seen.changes
    assert (change.send, change.base_hit, change.candidate_hit, change.less) == ("A (2)", 1024, 0, 1024)
    assert change.sentence == (
        "`last_token` 1 and `granule` 13 became `last_token` 1, `granule` 13 and `unexplained` 1024: the candidate "
        "now reuses less than its law says"
    )
    assert any("unexplained: hit 0" in finding for cell in seen.cells for finding in cell.new_findings)


def test_a_longer_hit_is_a_change_too(run: Run) -> None:
    seen = compare(side(run, SGLANG_16), side(run, SGLANG_1), about=OPTIONS)
    assert seen.verdict is Verdict.FAIL
    assert "reuse more" in seen.why[0]
    assert all((change.less or 0) <= 0 for change in seen.changes)
    assert {(d.field, d.base, d.candidate) for d in seen.cells[0].differing} >= {("options.page_size", 16, 1)}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            {Cause.GRANULE: 15, Cause.LAST_TOKEN: 1},
            {Cause.SPEC_DROP: 16, Cause.GRANULE: 15},
            "the version now drops the last matched block",
        ),
        (
            {Cause.SPEC_DROP: 16, Cause.GRANULE: 15},
            {Cause.GRANULE: 15, Cause.LAST_TOKEN: 1},
            "the version no longer drops the last matched block",
        ),
        (
            {Cause.REUSED: 32, Cause.GRANULE: 13},
            {Cause.REUSED: 16, Cause.GRANULE: 29},
            "the version loses 16 more tokens to `granule`",
        ),
        (
            {Cause.NO_STATE: 64, Cause.GRANULE: 3},
            {Cause.WINDOW: 60, Cause.GRANULE: 7},
            "the version now lacks the tokens of a sliding window and no longer lacks a recurrent state at the match",
        ),
        ({Cause.REUSED: 9, Cause.NOVEL: 1}, {Cause.REUSED: 8, Cause.NOVEL: 2}, "the version computes other tokens"),
    ],
)
def test_a_changed_ledger_in_words(before: dict[Cause, int], after: dict[Cause, int], words: str) -> None:
    assert ledger_words(before, after, "version").startswith(words)


def test_every_cause_has_words() -> None:
    for cause in set(Cause) - {Cause.REUSED, Cause.NOVEL, Cause.LAST_TOKEN}:
        assert "computes other" not in ledger_words({Cause.REUSED: 1}, {cause: 1}, "version"), cause


def test_the_sentence_of_the_issue(run: Run) -> None:
    base = next(r for r in run.requests if r.prompt_len == 32 and r.repetition == 1 and r.engine_label == VLLM.label)
    before = ((0, 16, Cause.REUSED), (16, 31, Cause.GRANULE), (31, 32, Cause.LAST_TOKEN))
    after = ((0, 1, Cause.REUSED), (1, 17, Cause.SPEC_DROP), (17, 32, Cause.GRANULE))
    one, other = (
        base.model_copy(
            update={
                "ledger": tuple(Interval(*part) for part in parts),
                "hit_len": parts[0][1],
                "position_start": parts[0][1],
            }
        )
        for parts in (before, after)
    )
    change = send_change("here", one, other, "version")
    assert change is not None
    assert change.sentence == (
        "`last_token` 1 and `granule` 15 became `granule` 15 and `spec_drop` 16: the version now drops the last "
        "matched block"
    )


def test_numbers_count_even_where_the_ledger_is_the_same(run: Run) -> None:
    def other_hit(request: RequestRecord) -> dict[str, Any]:
        return {"hit_len": 31} if request.hit_len == 32 else {}

    seen = compare(side(run, VLLM), side(altered(run, request=other_hit), VLLM))
    assert seen.verdict is Verdict.FAIL
    assert seen.changes[0].sentence.startswith("the same ledger, but hit 32 and start 32 became 31 and 32")


def test_changes_alike_are_one_line(run: Run) -> None:
    seen = compare(side(run, VLLM), side(run, SGLANG_16), about=ENGINE)
    groups = change_groups(seen.changes)
    assert len(groups) < len(seen.changes)
    assert sum(int(g.sends.split(" and ")[1].split()[0]) + 1 if " and " in g.sends else 1 for g in groups) == len(
        seen.changes
    )


FACTS = {"engine": "other", "version": "9.9", "fidelity": "lookup", "mode": "attach", "device": "cuda", "dtype": "x"}
REFUSED: list[tuple[str, dict[str, Any], frozenset[Subject]]] = [
    ("model_fingerprint", {"model_fingerprint": "e" * 64}, frozenset()),
    ("family", {"family": "other"}, frozenset()),
    ("seed", {"seed": 1}, frozenset()),
    ("parameters.lengths", {"parameters": {"lengths": [1]}}, frozenset()),
    ("options.block_size", {"configuration": {"options": {"block_size": 64}}}, OPTIONS),
]


@pytest.mark.parametrize(("field", "update", "allowed"), REFUSED)
def test_unlike_configurations_are_refused_by_field(
    run: Run, field: str, update: dict[str, Any], allowed: frozenset[Subject]
) -> None:
    ladder = part(run, "ladder")

    def other_cell(cell: CellManifest) -> dict[str, Any]:
        old = cell.model_dump()
        return {key: {**old[key], **value} if isinstance(value, dict) else value for key, value in update.items()}

    other = side(altered(ladder, cell=other_cell), VLLM)
    with pytest.raises(UsageError, match=f"{field} differs"):
        compare(side(ladder, VLLM), other)
    for about in (VERSION, OPTIONS, ENGINE):
        if about <= allowed | (ENGINE if allowed else frozenset()):
            assert compare(side(ladder, VLLM), other, about=about).verdict is Verdict.PASS
        else:
            with pytest.raises(UsageError, match=f"{field} differs"):
                compare(side(ladder, VLLM), other, about=about)


@pytest.mark.parametrize(("field", "value"), FACTS.items())
def test_what_the_engine_says_must_be_alike_or_be_the_subject(run: Run, field: str, value: str) -> None:
    other = side(altered(run, cell=lambda cell: {"facts": {**(cell.facts or {}), field: value}}), VLLM)
    with pytest.raises(UsageError, match=f"{field} differs.*--about"):
        compare(side(run, VLLM), other)
    assert compare(side(run, VLLM), other, about=ENGINE).verdict is Verdict.PASS


def test_the_remedy_names_the_flag(run: Run) -> None:
    other = altered(run, cell=lambda cell: {"facts": {**(cell.facts or {}), "version": "0.33.0"}})
    with pytest.raises(UsageError, match=r"'0\.32\.0' and '0\.33\.0'; .* add --about version"):
        compare(side(run, VLLM), side(other, VLLM))
    assert compare(side(run, VLLM), side(other, VLLM), about=VERSION).about == (Subject.VERSION,)


def test_other_prompts_are_refused(run: Run) -> None:
    other = altered(run, request=lambda r: {"prompt_sha256": "0" * 64} if r.label == "B" else {})
    with pytest.raises(UsageError, match=r"prompt_sha256 differs.*of send 'B'"):
        compare(side(run, VLLM), side(other, VLLM))


def test_a_missing_send_is_refused(run: Run) -> None:
    shorter = replace(run, requests=tuple(r for r in run.requests if r.label != "B"))
    with pytest.raises(UsageError, match="only one side has 'B'"):
        compare(side(run, VLLM), side(shorter, VLLM))


def test_a_missing_workload_is_refused(run: Run, tmp_path: Path) -> None:
    less = sample_run(tmp_path, [VLLM], ["changed", "ladder"])
    with pytest.raises(UsageError, match="has no chat on tiny-qwen3"):
        compare(side(run, VLLM), side(less))


def test_prompts_made_of_other_answers_are_counted_not_compared(run: Run) -> None:
    """A chat goes on with what the engine said: after a different answer its prompts are not the same any more."""
    first = next(r for r in run.requests if r.workload == "chat" and r.role is Role.PROBE and r.label == "turn 1")

    def other_answer(request: RequestRecord) -> dict[str, Any]:
        if request.workload != "chat" or request.role is not Role.PROBE:
            return {}
        if request.index == first.index:
            return {"output_ids": (1, 2, 3)}
        return {"prompt_sha256": "1" * 64} if request.index > first.index else {}

    seen = compare(side(run, VLLM), side(altered(run, request=other_answer), VLLM))
    (chat,) = [cell for cell in seen.cells if cell.where.startswith("chat")]
    assert (chat.sends, chat.unlike_sends) == (1, 2)


def test_an_unfinished_side_is_inconclusive(run: Run, tmp_path: Path) -> None:
    killed = sample_run(tmp_path, [VLLM], ["changed", "ladder", "chat"])
    (killed.folder / killed.manifest.cells[2] / "cell.json").unlink()
    seen = compare(side(run, VLLM), side(load_run(tmp_path)))
    assert seen.verdict is Verdict.INCONCLUSIVE
    assert any("not run or killed: cell-2" in gap for gap in seen.gaps)
    assert any("only one side has it" in gap for gap in seen.gaps)


def test_an_engine_that_shows_nothing_is_inconclusive(run: Run) -> None:
    seen = compare(side(run, SILENT), side(run, SILENT))
    assert seen.verdict is Verdict.INCONCLUSIVE
    assert "94 sends without hit or start on one side" in seen.why


def test_an_invalid_cell_supports_no_verdict(run: Run) -> None:
    seen = compare(side(run, VLLM), side(altered(run, cell=lambda _: {"valid": False}), VLLM))
    assert seen.verdict is Verdict.INCONCLUSIVE


def latency(base: Run, candidate: Run, threshold: float | None = 0.05, discard: int = 0) -> Comparison:
    return compare(side(base, VLLM), side(candidate, VLLM), max_slowdown=threshold, discard=discard)


def test_times_decide_only_against_a_threshold(run: Run) -> None:
    base, slow = (slowed(part(run, "ladder"), factor, seed=seed) for seed, factor in enumerate((1, 1.3)))
    assert latency(base, slow, None).verdict is Verdict.PASS
    seen = latency(base, slow, 0.05)
    assert seen.verdict is Verdict.FAIL
    assert any("slower than the 5 % allowed: +" in sentence for sentence in seen.why)
    assert latency(base, slow, 0.5).verdict is Verdict.PASS
    assert latency(base, slow, 0.3).verdict is Verdict.INCONCLUSIVE


def test_faster_passes(run: Run) -> None:
    ladder = part(run, "ladder")
    seen = latency(slowed(ladder, 1), slowed(ladder, 0.8, seed=1))
    assert seen.verdict is Verdict.PASS
    assert all(line.ratio.high < 1 for line in seen.latency)


def test_cold_and_warm_are_apart_and_small_workloads_together(run: Run) -> None:
    lines = latency(slowed(run, 1), slowed(run, 1, seed=1)).latency
    named = {(line.where, line.state): line.ratio.pairs for line in lines}
    assert {state for _, state in named} == {"cold", "warm"}
    probes = [r for r in run.requests if r.engine_label == VLLM.label and r.role is not Role.SENTINEL]
    assert sum(named.values()) == len(probes)
    assert any(where.endswith("small workloads") for where, _ in named)


def test_a_prompt_that_is_warm_on_one_side_is_no_pair(run: Run) -> None:
    both = compare(side(run, VLLM), side(run, VLLM)).latency
    lost = compare(side(run, VLLM), side(run, FORGETFUL)).latency
    assert sum(line.ratio.pairs for line in lost) == sum(line.ratio.pairs for line in both) - 1


def test_warnings_name_the_remedy(run: Run) -> None:
    few = part(run, "changed")
    text = " ".join(latency(few, few).warnings)
    assert "too few pairs" in text
    assert "give the workload more prompts or more sends" in text
    noisy = " ".join(latency(slowed(run, 1, 0.2), slowed(run, 1, 0.2, seed=1)).warnings)
    assert "pin the engine to cores" in noisy
    assert "start again" in noisy


def test_a_slow_first_request_is_noticed_and_left_out(run: Run) -> None:
    firsts = {
        next(r.request_id for r in run.requests if r.cell == cell.cell and r.role is Role.PROBE) for cell in run.cells
    }
    slow = altered(run, request=lambda r: {"ttft_ns": 3 * (r.ttft_ns or 0)} if r.request_id in firsts else {})
    seen = latency(run, slow)
    assert any("--discard 1" in warning for warning in seen.warnings)
    assert not any("--discard 1" in warning for warning in latency(run, slow, discard=1).warnings)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"clock_source": "hpet"}, "boot with clocksource=tsc"),
        ({"clock_source": None}, "did not record its clock source"),
        ({"cores": 64, "clock_source": "tsc"}, "run both sides on one machine"),
    ],
)
def test_clock_and_machine_are_looked_at(run: Run, machine: dict[str, Any], words: str) -> None:
    text = " ".join(latency(slowed(run, 1), altered(slowed(run, 1, seed=1), machine=machine)).warnings)
    assert words in text


def test_a_coarse_clock_is_noticed(run: Run) -> None:
    coarse = altered(run, request=lambda r: {"ttft_ns": r.ttft_ns and (r.ttft_ns // 10**6 + 1) * 10**6})
    assert any("multiples of 0.1 ms" in warning for warning in latency(coarse, coarse).warnings)


def test_the_same_comparison_gives_the_same_bytes(run: Run) -> None:
    first, second = (latency(slowed(run, 1), slowed(run, 1.1, seed=1)) for _ in range(2))
    assert comparison_json(first) == comparison_json(second)
    assert comparison_markdown(first) == comparison_markdown(second)
    document = json.loads(comparison_json(first))
    assert document["schema"] == "hitparity.comparison/1"
    assert document["verdict"] == "fail"
    assert document["exit_code"] == 1


def test_the_command_reads_labels_and_its_exit_code_is_the_verdict(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    vllm, forgetful = (f"{run.folder}:{played.label}" for played in (VLLM, FORGETFUL))
    runner = CliRunner()
    passed = runner.invoke(app, ["compare", vllm, vllm], catch_exceptions=False)
    assert (passed.exit_code, passed.output.split()[0]) == (0, "PASS")
    out = tmp_path / "out.md"
    failed = runner.invoke(app, ["compare", vllm, forgetful, "--markdown", str(out)], catch_exceptions=False)
    assert failed.exit_code == 1
    assert "now reuses less than its law says" in " ".join(failed.output.split())
    assert "`unexplained` 1024" in out.read_text()
    assert (tmp_path / "summary.md").read_text().count("## hitparity compare: ") == 2
    slow = runner.invoke(app, ["compare", vllm, vllm, "--max-slowdown", "5%"], catch_exceptions=False)
    assert slow.exit_code in (0, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN:nobody", "RUN"], "has no engine configuration 'nobody'; it has vllm block_size=32"),
        (["RUN", "/nowhere"], "not a run folder"),
        (["/nowhere:vllm", "RUN"], "no such run"),
        (["RUN", "RUN", "--max-slowdown", "5"], "give a percentage such as 5%"),
    ],
)
def test_wrong_arguments_are_told(run: Run, arguments: list[str], message: str) -> None:
    given = [argument.replace("RUN", str(run.folder)) for argument in arguments]
    result = CliRunner().invoke(app, ["compare", *given])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_a_colon_in_a_label_or_folder_is_no_problem(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    sample_run(folder, [replace(VLLM, label="vllm: one:two")], ["changed"])
    assert read_side(f"{folder}:vllm: one:two").label == "vllm: one:two"
    assert read_side(str(folder)).label is None
