"""The trust rules of a cell: what an engine may claim, and what is noticed when it claims more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lying_engine import LyingEngine, Twist, honest

from checkpoints import Checkpoint
from harness.cell import CellOutcome, CellRun
from harness.experiment import Checks
from harness.interrupt import Interrupt
from harness.judge import Judge
from harness.plan import Cell, PlannedWorkload
from harness.records import FindingKind, RequestRecord, Role
from harness.store import RequestLog
from vocabulary.engine import Reply, TokenRequest
from vocabulary.errors import UsageError
from vocabulary.ledger import Cause
from workloads.registry import FAMILIES
from workloads.source import TokenSource

Ran = tuple[CellOutcome, list[RequestRecord]]


@pytest.fixture
def run_cell(tmp_path: Path, checkpoint: Callable[[str], Checkpoint]) -> Callable[..., Ran]:
    model = checkpoint("tiny-qwen3")

    def run(family: str = "changed", checks: Checks | None = None, parameters: dict[str, Any] | None = None,
            **engine: Any) -> Ran:  # fmt: skip
        kind = FAMILIES[family]
        workload = PlannedWorkload(family, kind, kind.parameters.model_validate(parameters or {}), 0)
        records: list[RequestRecord] = []
        lying = LyingEngine(model, **engine)
        with Interrupt() as interrupt, RequestLog(tmp_path / "cell") as log:
            cell = CellRun(
                lying,
                Judge(lying.facts),
                Cell("cell", "liar", "tiny-qwen3", workload),
                checks or Checks(),
                log=log,
                interrupt=interrupt,
                on_request=records.append,
            )
            source = TokenSource(0, model.vocab_size, reserved=model.reserved_ids, granule=lying.facts.granule)
            outcome = cell.run(source)
        written = (tmp_path / "cell" / "requests.jsonl").read_text(encoding="utf-8").splitlines()
        assert written == [record.model_dump_json(by_alias=True) for record in records]
        assert all(RequestRecord.model_validate_json(line) for line in written)
        return outcome, records

    return run


def kinds(outcome: CellOutcome, records: list[RequestRecord]) -> set[FindingKind]:
    return {f.kind for f in outcome.findings} | {f.kind for record in records for f in record.findings}


def only(name: str, **changes: Any) -> Twist:
    """Change the reply to the requests of one role or prompt, seen by their position in the cell."""

    def twist(number: int, request: TokenRequest, reply: Reply) -> Reply:
        return dataclasses.replace(reply, **changes) if name == str(number) else reply

    return twist


def test_an_honest_engine_is_clean_and_every_token_is_explained(run_cell: Callable[..., Ran]) -> None:
    outcome, records = run_cell(block_size=16)
    assert outcome.valid
    assert kinds(outcome, records) == set()
    probes = [r for r in records if r.role is Role.PROBE]
    assert [r.hit_len for r in probes] == [0, 1024, 16, 1024, 1024, 1024, 1024]
    assert [r.repetition for r in probes] == [0, 0, 0, 1, 2, 1, 1]
    assert all(sum(r.by_cause().values()) == r.prompt_len and Cause.UNEXPLAINED not in r.by_cause() for r in records)
    assert [r.hit_len == 0 for r in records if r.role is Role.CONTROL] == [True] * 3
    assert [r.hit_len for r in records if r.role is Role.SENTINEL] == [0, 32, 0]


@pytest.mark.parametrize(
    ("changes", "kind", "valid"),
    [
        ({"hit_len": 1008, "position_start": 1008}, FindingKind.UNEXPLAINED, True),
        ({"hit_len": 1026, "position_start": 1026}, FindingKind.SURPLUS, True),
        ({"hit_len": 1030, "position_start": 1030}, FindingKind.APPROXIMATE, True),
        ({"position_start": 1008}, FindingKind.SOURCES_DISAGREE, True),
        ({"steps": ((1024, 1030), (1031, 1038))}, FindingKind.SOURCES_DISAGREE, True),
        ({"hit_len": -1}, FindingKind.OUT_OF_RANGE, False),
        ({"hit_len": 1038, "position_start": 1038}, FindingKind.OUT_OF_RANGE, False),
        ({"prompt_len": 1037}, FindingKind.PROMPT_MISCOUNT, False),
        ({"output_ids": (3,)}, FindingKind.WARM_DIFFERS, True),
        ({"first_logprob": -1.2}, FindingKind.WARM_DIFFERS, True),
        ({"first_logprob": float("nan")}, FindingKind.WARM_DIFFERS, True),
    ],
)
def test_a_false_claim_about_a_warm_prompt_is_noticed(
    run_cell: Callable[..., Ran], changes: dict[str, Any], kind: FindingKind, valid: bool
) -> None:
    outcome, records = run_cell(block_size=16, twist=only("5", **changes))  # 3 sentinels, A, then B
    assert kind in kinds(outcome, records)
    assert outcome.valid is valid


def test_unknown_is_not_zero(run_cell: Callable[..., Ran]) -> None:
    outcome, records = run_cell(
        block_size=16, twist=lambda n, q, r: dataclasses.replace(r, hit_len=None, position_start=None)
    )
    assert {r.tail_len for r in records} == {None}
    assert {r.ledger for r in records} == {()}
    assert kinds(outcome, records) == {FindingKind.NO_WARM_HIT}


@pytest.mark.parametrize("answer", [True, False])
def test_a_reset_is_not_believed(run_cell: Callable[..., Ran], answer: bool) -> None:
    outcome, _ = run_cell(block_size=16, reset_works=False, reset_answer=answer)
    assert not outcome.valid
    assert FindingKind.RESET_FAILED in {f.kind for f in outcome.findings}


def test_an_engine_that_caches_nothing_supports_no_warm_claim(run_cell: Callable[..., Ran]) -> None:
    def miss(number: int, request: TokenRequest, reply: Reply) -> Reply:
        return dataclasses.replace(reply, hit_len=0, position_start=0)

    outcome, records = run_cell(block_size=16, twist=miss)
    assert {FindingKind.NO_WARM_HIT, FindingKind.UNEXPLAINED} <= kinds(outcome, records)


def test_a_nondeterministic_engine_is_told_from_a_wrong_hit(run_cell: Callable[..., Ran]) -> None:
    def random_output(number: int, request: TokenRequest, reply: Reply) -> Reply:
        return dataclasses.replace(reply, output_ids=(number,))

    outcome, _ = run_cell(block_size=16, twist=random_output)
    assert FindingKind.COLD_DIFFERS in {f.kind for f in outcome.findings}
    assert FindingKind.WARM_DIFFERS not in {f.kind for f in outcome.findings}


def test_outputs_are_sent_back_in_a_growing_chat(run_cell: Callable[..., Ran]) -> None:
    outcome, records = run_cell(family="grow", block_size=16, parameters={"first": 100, "max_tokens": 30, "turns": 3})
    probes = [r for r in records if r.role is Role.PROBE]
    assert [r.prompt_len for r in probes] == [100, 150, 200]
    assert [r.lcp_len for r in probes] == [0, 129, 179]  # the last generated token was never computed
    assert [r.hit_len for r in probes] == [0, 128, 176]
    assert outcome.valid


def test_without_checks_only_the_workload_is_sent(run_cell: Callable[..., Ran]) -> None:
    _, records = run_cell(checks=Checks(verify_reset=False, control=False), block_size=16, twist=honest)
    assert {r.role for r in records} == {Role.PROBE}


def test_a_prompt_longer_than_the_context_is_refused_before_anything_is_sent(run_cell: Callable[..., Ran]) -> None:
    with pytest.raises(UsageError, match=r"send 1 .*needs 40001 tokens.*context of 32768"):
        run_cell(family="repeat", parameters={"lengths": [40_000]}, block_size=16)
