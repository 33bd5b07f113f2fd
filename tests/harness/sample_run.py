"""A run folder as the harness writes it, with engines played by real laws on real workload families.

Hits, starts, ledgers and findings come from `CellRun`, the laws and the judge; only the clock is made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from harness.cell import CellOutcome, CellRun
from harness.durable import write_manifest
from harness.experiment import Checks
from harness.interrupt import Interrupt
from harness.judge import Judge
from harness.plan import Cell, PlannedWorkload
from harness.records import CellManifest, CellStatus, RunManifest
from harness.store import CELL_FILE, RUN_FILE, RequestLog, Run, load_run
from reference_engine.laws.parts.history import common_prefix
from reference_engine.laws.registry import make_law
from vocabulary.engine import EngineFacts, Fidelity, Mode, Reply, TokenRequest
from vocabulary.errors import ExitCode
from workloads.registry import FAMILIES
from workloads.source import TokenSource

VOCAB = 2048
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "changed": ("changed", {}),
    "ladder": ("repeat", {"blocks": (16, 32, 64), "multiples": (1, 2, 3)}),
    "chat": ("grow", {"max_tokens": 8}),
}
EDGES = "edges"
"""A ladder at each engine's own block edges, so that engines get different sends."""
WORKLOADS_AND_EDGES = WORKLOADS | {EDGES: ("repeat", {"blocks": ("engine",), "sends": 2})}
Lookup = Callable[[TokenRequest], tuple[int | None, int | None]]
"""A request to the hit and start that the engine shows."""


@dataclass(frozen=True, slots=True)
class Played:
    """One engine configuration of the sample."""

    label: str
    engine: str
    version: str
    law: str | None
    options: dict[str, Any]
    mode: Mode | None = Mode.LAUNCH
    fidelity: Fidelity = Fidelity.SERVED
    emulated: bool = False
    shown: str = "both"
    """"both", "hit" (no start) or "nothing"."""
    forgets_at: int | None = None
    """Number of the lookup that misses although the law says it hits."""
    notes: tuple[str, ...] = ()
    ns_per_token: int = 10_000


VLLM = Played("vllm block_size=32", "vllm", "0.32.0", "vllm@0.32", {"block_size": 32})
SGLANG_1 = Played("sglang page_size=1", "sglang", "0.5.23", "sglang@0.5.23", {"page_size": 1}, ns_per_token=14_000)
SGLANG_16 = Played("sglang page_size=16", "sglang", "0.5.23", "sglang@0.5.23", {"page_size": 16}, ns_per_token=14_000)
LLAMA_CPP = Played("llama.cpp", "llama.cpp", "b11549", None, {}, shown="hit", notes=("no law covers its slots here",))
REFERENCE = Played(
    "reference as vllm@0.32", "reference", "0.1.0", "vllm@0.32", {"block_size": 16}, Mode.WORKER, emulated=True
)
LAW = Played("law sglang@0.5.23", "sglang", "0.5.23", "sglang@0.5.23", {"page_size": 64}, None, Fidelity.LAW)
FORGETFUL = Played("vllm forgetful", "vllm", "0.32.0", "vllm@0.32", {"block_size": 32}, forgets_at=6)
SILENT = Played("silent", "llama.cpp", "b1", None, {}, Mode.ATTACH, shown="nothing")
ALL = (VLLM, SGLANG_1, SGLANG_16, LLAMA_CPP, REFERENCE, LAW)


class PlayedEngine:
    """`vocabulary.engine.Engine` that answers by a law, or by one slot where no law is named."""

    def __init__(self, played: Played) -> None:
        self._played = played
        self._law = make_law(played.law, played.options) if played.law else None
        self._slot = np.empty(0, np.int32)
        self._clock = self._lookups = 0
        self.facts = EngineFacts(
            engine=played.engine,
            version=played.version,
            mode=played.mode,
            fidelity=played.fidelity,
            device="cpu" if played.mode else "none",
            dtype="float32",
            granule=self._law.granule if self._law else 1,
            groups=("full",),
            context_len=8192,
            vocab_size=VOCAB,
            law=played.law,
            law_options=played.options,
            options=played.options,
            emulated=played.emulated,
            notes=played.notes,
        )

    def send(self, request: TokenRequest) -> Reply:
        output = tuple(int(i) for i in np.random.default_rng(sum(request.ids)).integers(0, VOCAB, request.max_tokens))
        hit = self._lookup(request, output)
        if self._lookups == self._played.forgets_at:
            hit = 0
        self._lookups += 1
        sent, took = self._clock, 2_000_000 + (request.prompt_len - hit) * self._played.ns_per_token
        self._clock += took + 1_000
        predicted = self._played.fidelity is Fidelity.LAW
        return Reply(
            request_id=request.request_id,
            prompt_len=request.prompt_len,
            hit_len=None if self._played.shown == "nothing" else hit,
            hit_source="none" if self._played.shown == "nothing" else "usage.cached_tokens",
            position_start=hit if self._played.shown == "both" else None,
            position_source="scheduler" if self._played.shown == "both" else "none",
            output_ids=output,
            first_logprob=None,
            sent_ns=sent,
            first_token_ns=None if predicted else sent + took,
            done_ns=sent + took,
            steps=None,
        )

    def _lookup(self, request: TokenRequest, output: Sequence[int]) -> int:
        if self._law:
            hit = self._law.send(request).position_start
            self._law.finish(request, output)
            return hit
        ids = np.asarray(request.ids, np.int32)
        hit = min(common_prefix(self._slot, ids), len(ids) - 1)
        self._slot = np.concatenate([ids, np.asarray(output[:-1], np.int32)])
        return hit

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        return [self.send(request) for request in requests]

    def reset(self) -> bool:
        if self._law:
            self._law.reset()
        self._slot = self._slot[:0]
        return True

    def close(self) -> None:
        """Nothing to stop."""


def sample_run(
    folder: Path,
    engines: Sequence[Played] = ALL,
    workloads: Sequence[str] = tuple(WORKLOADS),
    *,
    model: str = "tiny-qwen3",
    failed: Sequence[str] = (),
    checks: Checks = Checks(),  # noqa: B008  (frozen)
) -> Run:
    """Write a run below `folder` and read it back; `failed` labels never started."""
    cells: list[str] = []
    for played in engines:
        engine = PlayedEngine(played)
        for name in workloads:
            family, parameters = WORKLOADS_AND_EDGES[name]
            checked = FAMILIES[family].parameters(**parameters)
            cell = Cell(f"cell-{len(cells)}", played.label, model, PlannedWorkload(name, FAMILIES[family], checked, 0))
            cells.append(cell.id)
            with RequestLog(folder / cell.id) as log:
                source = TokenSource(0, VOCAB, granule=engine.facts.granule)
                outcome = _run(engine, cell, checks, log, source)
            write_manifest(folder / cell.id / CELL_FILE, _cell(played, cell, engine.facts, outcome, log.lines))
    for label in failed:
        cells.append(f"cell-{len(cells)}")
        (folder / cells[-1]).mkdir()
        write_manifest(folder / cells[-1] / CELL_FILE, _failed(cells[-1], label, model, workloads[0]))
    manifest = RunManifest(
        experiment="sample",
        experiment_digest="0" * 64,
        configuration={"name": "sample", "checks": checks.model_dump(mode="json")},
        hitparity="0.1.0",
        started="2026-01-02T03:04:05Z",
        machine={"cpu": "a processor", "cores": 2, "gpus": []},
        cells=tuple(cells),
    )
    write_manifest(folder / RUN_FILE, manifest)
    return load_run(folder)


def _cell(played: Played, cell: Cell, facts: EngineFacts, outcome: CellOutcome, lines: int) -> CellManifest:
    return CellManifest(
        cell=cell.id,
        status=CellStatus.COMPLETE,
        why="",
        exit_code=ExitCode.CLEAN,
        valid=outcome.valid,
        findings=outcome.findings,
        engine=played.engine,
        engine_label=played.label,
        configuration={"engine": played.engine, "options": played.options},
        facts=TypeAdapter(dict[str, Any]).dump_python(asdict(facts), mode="json"),
        model=cell.model,
        model_fingerprint="f" * 64,
        workload=cell.workload.name,
        family=cell.workload.family.name,
        parameters=cell.workload.parameters.model_dump(mode="json"),
        seed=0,
        requests=lines,
        engine_log=f"{cell.id}/engine.log",
    )


def _failed(cell: str, label: str, model: str, workload: str) -> CellManifest:
    return CellManifest(
        cell=cell,
        status=CellStatus.FAILED,
        why="the server ended with status 1 before it was ready",
        exit_code=ExitCode.UNAVAILABLE,
        valid=False,
        findings=(),
        engine="vllm",
        engine_label=label,
        configuration={},
        facts=None,
        model=model,
        model_fingerprint="",
        workload=workload,
        family=WORKLOADS_AND_EDGES[workload][0],
        parameters={},
        seed=0,
        requests=0,
        engine_log=f"{cell}/engine.log",
    )


def _run(engine: PlayedEngine, cell: Cell, checks: Checks, log: RequestLog, source: TokenSource) -> CellOutcome:
    run = CellRun(engine, Judge(engine.facts), cell, checks, log=log, interrupt=Interrupt(), on_request=lambda _: None)
    return run.run(source)
