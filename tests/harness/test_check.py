"""`hitparity check`: differences as two ledgers, findings, what could not be run, and its exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.block_size import check_published
from harness.cases.check import Checked, check
from harness.cases.reading import find_cases, read_cases
from harness.cases.subjects import LookupSubject
from harness.cli import app
from reference_engine.laws.registry import make_law
from vocabulary.engine import EngineFacts, Fidelity, Reply, TokenRequest
from vocabulary.errors import EngineUnavailable, ExitCode, UsageError

CASE = {"id": "a", "source": "a test", "engine": "vllm@0.32", "groups": ["full:16"]}
TWICE = [{"prompt": [[0, 100]]}, {"prompt": [[0, 100]], "hit_len": 96}]


def written(tmp_path: Path, *cases: Mapping[str, Any]) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    return path


def hitparity(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_every_published_hit_and_report_comes_out_of_the_laws() -> None:
    done = check(find_cases(["published", "reports"]))
    assert done.requests > 700
    wrong = [f"{case.placed.where}: {answer.differences}" for case in done.cases for answer in case.differing]
    assert not wrong
    assert not done.not_run


def test_every_published_block_size_comes_out() -> None:
    published = check_published()
    assert published.numbers >= 15
    assert not published.differences


def test_equal_is_clean_and_counted(tmp_path: Path) -> None:
    result = hitparity("check", written(tmp_path, {**CASE, "requests": TWICE}))
    assert result.exit_code == ExitCode.CLEAN
    assert "2 requests, 0 differ" in result.stdout


def test_a_filter_that_leaves_nothing_is_no_pass() -> None:
    result = hitparity("check", "published", "--only", "no such case")
    assert isinstance(result.exception, UsageError)
    assert "--only 'no such case'" in str(result.exception)


def test_a_difference_shows_both_ledgers(tmp_path: Path) -> None:
    requests = [{"prompt": [[0, 100]]}, {"prompt": [[0, 100]], "hit_len": 80}]
    result = hitparity("check", written(tmp_path, {**CASE, "requests": requests}))
    assert result.exit_code == ExitCode.FINDINGS
    assert "cases.jsonl:1 a, request 1, vllm@0.32 by law: hit 96, stated 80" in result.stdout
    assert "reused [0, 80), unexplained [80, 96)" in result.stdout
    assert "reused [0, 96)" in result.stdout
    assert "2 requests, 1 differ" in result.stdout


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"hit_len": 96, "position_start": 90}, "start 96, stated 90"),
        ({"hit_len": 96, "backed_len": 32}, "backed 96, stated 32"),
        ({"findings": ["unbacked"]}, "no finding unbacked, one is stated"),
        ({"namespace": "b", "positive": True}, "hit 0, stated to be positive"),
    ],
)
def test_everything_stated_is_compared(tmp_path: Path, request_: dict[str, Any], says: str) -> None:
    requests = [{"prompt": [[0, 100]]}, {"prompt": [[0, 100]], **request_}]
    result = hitparity("check", written(tmp_path, {**CASE, "requests": requests}))
    assert result.exit_code == ExitCode.FINDINGS
    assert says in result.stdout


def test_what_cannot_be_run_is_no_pass(tmp_path: Path) -> None:
    cases = [
        {**CASE, "requests": TWICE},
        {**CASE, "id": "b", "requests": TWICE, "options": {"page_siz": 3}},
        {**CASE, "id": "c", "requests": TWICE, "engine": "vllm@0.1"},
        {**CASE, "id": "d", "requests": TWICE, "by": "served"},
    ]
    result = hitparity("check", written(tmp_path, *cases), "--by", "law")
    assert result.exit_code == ExitCode.INCONCLUSIVE
    assert "2 requests, 0 differ; 3 of 4 cases not run" in result.stdout
    assert "made for level served" in result.stdout
    assert "vllm@0.1" in result.stdout


def test_ten_thousand_requests_by_law_within_a_minute(tmp_path: Path) -> None:
    """Processor time: the machine may be shared."""
    block, length = 16, 600
    cases = []
    for number in range(500):
        base = 10_000 * number
        requests = [
            {"prompt": [[base, base + length - i], [base + 5000, base + 5001 + i]], "hit_len": hit}
            for i in range(20)
            for hit in [0 if i == 0 else (length - i) // block * block]
        ]
        cases.append({**CASE, "id": str(number), "requests": requests})
    path = written(tmp_path, *cases)
    began = time.process_time()
    done = check(read_cases(path))
    assert (done.requests, done.differing) == (10_000, 0)
    assert time.process_time() - began < 60


class LawLookup:
    """A lookup worker that answers by a law; counts how it was started and set up."""

    def __init__(self, law_id: str, options: Mapping[str, Any], log: list[str]) -> None:
        self.facts = EngineFacts(
            engine="vllm", version="0", mode=None, device="cpu", dtype="auto", granule=16, groups=("full",),
            context_len=10_000, vocab_size=4096, fidelity=Fidelity.LOOKUP,
        )  # fmt: skip
        self._id, self._log = law_id, log
        self._law = make_law(law_id, options)
        log.append(f"open {law_id}")

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        self._log.append("reconfigure")
        self._law = make_law(self._id, options)

    def send(self, request: TokenRequest, outputs: Sequence[int] = ()) -> Reply:
        assert max(request.ids) < 4096, "IDs are fitted into the worker's vocabulary"
        expected = self._law.send(request)
        self._law.finish(request, outputs)
        return Reply(
            request_id=request.request_id, prompt_len=request.prompt_len, hit_len=expected.hit_len, hit_source="",
            position_start=expected.position_start, position_source="", output_ids=tuple(outputs), first_logprob=None,
            sent_ns=0, first_token_ns=None, done_ns=0, steps=None,
        )  # fmt: skip

    def reset(self) -> bool:
        self._log.append("reset")
        self._law.reset()
        return True

    def close(self) -> None:
        self._log.append("close")


def checked_by_lookup(path: Path, log: list[str]) -> Checked:
    def subject() -> LookupSubject:
        return LookupSubject(lambda case, _: LawLookup(case.engine, case.law_options, log))

    return check(read_cases(path), Fidelity.LOOKUP, subjects={Fidelity.LOOKUP: subject})


def test_one_worker_per_system_and_version_reconfigured_as_seldom_as_possible(tmp_path: Path) -> None:
    cases = [
        {**CASE, "id": f"{number}-{version}-{block}", "engine": f"vllm@{version}", "groups": [f"full:{block}"],
         "requests": [{"prompt": [[0, 100]]}, {"prompt": [[0, 100]], "hit_len": 99 // block * block}]}
        for number in range(2)
        for block in (16, 32)
        for version in ("0.30", "0.32")
    ]  # fmt: skip
    log: list[str] = []
    done = checked_by_lookup(written(tmp_path, *cases), log)
    assert (done.requests, done.differing, done.not_run) == (16, 0, ())
    assert log == [
        "open vllm@0.30", "reset", "reconfigure", "reset", "close",
        "open vllm@0.32", "reset", "reconfigure", "reset", "close",
    ]  # fmt: skip
    assert [result.placed.case.id for result in done.cases] == [case["id"] for case in cases]


def test_a_configuration_that_does_not_start_leaves_the_others_alone(tmp_path: Path) -> None:
    def opener(case: Any, _: Path) -> LawLookup:
        if case.groups == ("full:16",):
            raise EngineUnavailable("the worker could not start")
        return LawLookup(case.engine, case.law_options, [])

    cases = [{**CASE, "id": str(i), "groups": [f"full:{16 * (2 - i % 2)}"], "requests": TWICE} for i in range(4)]
    done = check(
        read_cases(written(tmp_path, *cases)), subjects={Fidelity.LOOKUP: lambda: LookupSubject(opener)},
        level=Fidelity.LOOKUP,
    )  # fmt: skip
    assert [case.not_run is None for case in done.cases] == [True, False, True, False]


def test_a_missing_engine_leaves_its_cases_not_run_once_tried(tmp_path: Path) -> None:
    tried: list[str] = []

    def opener(case: Any, _: Path) -> Any:
        tried.append(case.engine)
        raise EngineUnavailable("hitparity env create it")

    path = written(tmp_path, *({**CASE, "id": str(i), "requests": TWICE} for i in range(3)))
    done = check(read_cases(path), Fidelity.LOOKUP, subjects={Fidelity.LOOKUP: lambda: LookupSubject(opener)})
    assert len(tried) == 1
    assert [case.not_run for case in done.cases] == ["hitparity env create it"] * 3
    assert done.code is ExitCode.INCONCLUSIVE


@pytest.mark.live("vllm-lookup@0.23.0", "llama.cpp", "llama-cpp-python")
def test_the_three_exhibits() -> None:
    done = check(find_cases(["exhibits"]))
    assert not done.not_run
    assert not [answer.differences for case in done.cases for answer in case.differing]
    last = [case.answers[-1] for case in done.cases]
    assert [[finding.kind.value for finding in answer.findings] for answer in last] == [
        ["unbacked"], ["approximate"], ["unbacked"],
    ]  # fmt: skip
    assert last[1].outcome.hit_len is not None
    assert last[1].outcome.hit_len > last[1].lcp_len


@pytest.mark.live("vllm-lookup@0.30.0", "vllm-ascend-lookup@0.30.0rc2")
def test_the_published_tables_by_the_engines_own_code() -> None:
    chosen = [placed for placed in find_cases(["published"]) if placed.case.engine.endswith("@0.30")]
    done = check(chosen, Fidelity.LOOKUP)
    assert (done.differing, done.not_run) == (0, ())


@pytest.mark.live("llama.cpp")
def test_reports_of_llama_cpp_served() -> None:
    names = ["reports/llama.cpp-10993", "reports/llama.cpp-18497", "reports/llama.cpp-28139"]
    done = check(find_cases(names), Fidelity.SERVED)
    assert not [(case.placed.where, answer.differences) for case in done.cases for answer in case.differing]
    assert not done.not_run
