"""Baselines: what an engine configuration answered when somebody last looked at it and agreed.

A baseline is a run folder of one engine configuration without anything that time or place decides: no times, no
machine, no log-probabilities, no fields of the engine's own. `hitparity compare` reads it as it reads any run.

    results/baselines/<configuration>/{run.json, <cell>/{cell.json, requests.jsonl}}
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.compare.comparison import Comparison, compare
from harness.compare.likeness import Subject
from harness.compare.sides import Side
from harness.durable import writable, write_manifest
from harness.records import CellManifest, CellStatus, FindingKind, RequestRecord, Role, RunManifest
from harness.store import CELL_FILE, RUN_FILE, RequestLog, Run, load_run
from vocabulary.errors import UsageError

BASELINES = Path("results/baselines")
ABOUT = frozenset({Subject.VERSION, Subject.OPTIONS})
"""A new version or option of the engine is what a baseline is there to judge."""
OF_THE_RULE = frozenset({FindingKind.UNBACKED, FindingKind.APPROXIMATE})
"""Findings that belong to a release, such as vLLM 0.23's hits that nothing backs; a baseline keeps them."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One engine configuration of a run beside its baseline."""

    label: str
    folder: Path
    """Of the baseline."""
    comparison: Comparison | None
    """None: there is no baseline yet, or it is unlike."""
    unlike: str | None = None
    """Why the run cannot be compared with its baseline, such as a workload that was changed."""


def check(run: Run, baselines: Path) -> list[Checked]:
    """Every configuration of a run against its baseline."""
    found = []
    for label in dict.fromkeys(cell.engine_label for cell in run.cells):
        folder = baselines / folder_name(label)
        candidate = Side(f"{run.folder}:{label}", run, label)
        base = Side(str(folder), load_run(folder), None) if (folder / RUN_FILE).is_file() else None
        try:
            found.append(Checked(label, folder, compare(base, candidate, about=ABOUT) if base else None))
        except UsageError as error:
            found.append(Checked(label, folder, None, unlike=str(error)))
    return found


def accept(run: Run, label: str, folder: Path) -> None:
    """Replace a baseline by what the run has of one configuration.

    Raises UsageError where a cell is incomplete, invalid or has findings: nobody should agree to those unseen.
    """
    cells = [cell for cell in run.cells if cell.engine_label == label]
    for cell in cells:
        if cell.status is not CellStatus.COMPLETE or not cell.valid or cell.findings:
            why = cell.why or "; ".join(finding.detail for finding in cell.findings) or "invalid"
            raise UsageError(f"{label}, {cell.workload}: no baseline can be made of it: {why}")
    kept = {cell.cell: [r for r in run.requests if r.cell == cell.cell and r.role is Role.PROBE] for cell in cells}
    for finding in (f for requests in kept.values() for r in requests for f in r.findings):
        if finding.kind not in OF_THE_RULE:
            raise UsageError(f"{label}: no baseline can be made of a run with findings: {finding.detail}")
    fresh = folder.with_name(f".{folder.name}.new")
    with writable(folder):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
    for cell in cells:
        _write(fresh, cell, kept[cell.cell])
    write_manifest(fresh / RUN_FILE, _run_manifest(run.manifest, cells))
    with writable(folder):
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)


def folder_name(label: str) -> str:
    """A configuration's folder below the baselines."""
    return re.sub(r"[^A-Za-z0-9._@-]+", "-", label).strip("-.") or "x"


def _write(folder: Path, cell: CellManifest, requests: Sequence[RequestRecord]) -> None:
    with RequestLog(folder / cell.cell) as log:
        for request in requests:
            log.append(_timeless(request))
    asked = {"options": cell.configuration.get("options", {})}
    stripped = cell.model_copy(update={"configuration": asked, "requests": len(requests), "engine_log": ""})
    write_manifest(folder / cell.cell / CELL_FILE, stripped)


def _timeless(request: RequestRecord) -> RequestRecord:
    gone: dict[str, Any] = {"sent_ns": 0, "total_ns": 0, "ttft_ns": None, "first_logprob": None, "native": {}}
    return request.model_copy(update=gone)


def _run_manifest(manifest: RunManifest, cells: Sequence[CellManifest]) -> RunManifest:
    gone: dict[str, Any] = {"machine": {}, "started": "", "configuration": {"name": manifest.experiment}}
    return manifest.model_copy(update=gone | {"cells": tuple(cell.cell for cell in cells)})
