"""The founding comparison on the real engines: the numbers that must come out, each explained to the token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.base import EngineSpec
from harness.catalogue import find_experiment
from harness.experiment import load_experiment
from harness.plan import Group, plan
from harness.records import CellManifest, CellStatus, RequestRecord, Role
from harness.runner import Runner, open_run
from harness.store import load_run
from vocabulary.errors import ExitCode
from vocabulary.ledger import Cause

HITS = {
    # A, B, B', A on an empty cache, then A, B, B' once more
    "reference as vLLM, block 16": [0, 1024, 16, 1024, 1024, 1024, 1024],
    "reference as SGLang, page 1": [0, 1026, 17, 1037, 1037, 1037, 1037],
    "reference as llama.cpp": [0, 1026, 17, 17, 1037, 1026, 17],
    "llama.cpp": [0, 1026, 17, 17, 1037, 1026, 17],
    "llama-cpp-python": [0, 1026, 17, 17, 1038, 1026, 17],
    "vllm block_size=32": [0, 1024, 0, 1024, 1024, 1024, 1024],
    "vllm block_size=64": [0, 1024, 0, 1024, 1024, 1024, 1024],
    "vllm block_size=128": [0, 1024, 0, 1024, 1024, 1024, 1024],
    "sglang page_size=1": [0, 1026, 17, 1037, 1037, 1037, 1037],
    "sglang page_size=16": [0, 1024, 16, 1024, 1024, 1024, 1024],
    "sglang page_size=64": [0, 1024, 0, 1024, 1024, 1024, 1024],
}
GRANULE = {"reference as vLLM, block 16": 16, **{label: int(label.split("=")[1]) for label in HITS if "=" in label}}
"""Token-granular engines have 1."""


class Silent:
    """A progress that says nothing."""

    def group(self, group: Group, cells: int) -> None: ...

    def remark(self, cell: object, text: str) -> None: ...

    def request(self, cell: object, record: RequestRecord) -> None: ...

    def cell(self, cell: object, manifest: CellManifest) -> None: ...


@pytest.mark.parametrize(
    "label",
    [pytest.param(label, marks=pytest.mark.live(label.split()[0]), id=label.replace(" ", "-")) for label in HITS],
)
def test_the_numbers_come_out_and_every_token_is_explained(
    label: str, tmp_path: Path, engine_spec: Callable[..., EngineSpec]
) -> None:
    path = find_experiment("five-answers")
    experiment = load_experiment(path)
    (group,) = plan(experiment, [f"label={label}"])
    interpreter = engine_spec(group.spec.engine).python
    groups = [dataclasses.replace(group, spec=dataclasses.replace(group.spec, python=interpreter))]
    folder = open_run(experiment, path, groups, tmp_path, resume=False)
    code = Runner(experiment, path, folder, Silent()).run(groups)
    run = load_run(folder)
    assert [(cell.status, cell.why) for cell in run.cells] == [(CellStatus.COMPLETE, "")] * 2
    assert code is ExitCode.CLEAN, [*(cell.findings for cell in run.cells), *(r.findings for r in run.requests)]
    probes = [record for record in run.requests if record.role is Role.PROBE]
    answers = [record for record in probes if record.workload == "changed"]
    assert [record.hit_len for record in answers] == HITS[label]
    assert [record.position_start for record in answers] == HITS[label]
    for record in run.requests:
        assert record.law is not None
        assert Cause.UNEXPLAINED not in record.by_cause()
        assert record.tail_len == record.prompt_len - record.by_cause().get(Cause.REUSED, 0)
        assert record.position_source != record.hit_source
    granule = GRANULE.get(label, 1)
    for record in probes:
        if record.workload == "repeat":
            full = record.prompt_len if label == "llama-cpp-python" else record.prompt_len - 1
            assert record.hit_len == (full // granule * granule if record.repetition else 0)
    assert {record.ttft_ns is not None for record in probes} == {True}
