"""Requests of a recorded run as sequences that a law can be asked about again.

A run keeps digests of prompts, not the prompts; they are drawn again from the workload's seed and compared with the
digests.
"""

from __future__ import annotations

from pathlib import Path

from checkpoints.text import encode
from harness.catalogue import catalogue
from harness.explain.counterfactual import Sent, World
from harness.records import CellManifest, RequestRecord, Role
from harness.runner import open_model, read_document
from harness.store import Run, load_run
from vocabulary.errors import HitparityError, LawDoesNotCover, UsageError
from workloads.registry import FAMILIES
from workloads.sequence import fingerprint
from workloads.source import TokenSource


def find_record(folder: Path, request_id: str) -> tuple[Run, CellManifest, RequestRecord]:
    """Run, cell and record of one request; UsageError lists some ids where it is unknown."""
    run = load_run(folder)
    for record in run.requests:
        if record.request_id == request_id:
            cell = next(cell for cell in run.cells if cell.cell == record.cell)
            return run, cell, record
    some = ", ".join(record.request_id for record in run.requests[:10])
    raise UsageError(f"{folder}: no request {request_id!r}; there are: {some}, ...")


def world_of(run: Run, cell: CellManifest, record: RequestRecord) -> World:
    """The law's configuration and the requests up to `record`; LawDoesNotCover or UsageError says why not."""
    if record.role is not Role.PROBE:
        raise UsageError(f"{record.request_id} is a {record.role.value}, sent to an emptied cache; choose a probe")
    facts = cell.facts or {}
    if not facts.get("law"):
        raise LawDoesNotCover(f"{record.engine_label}: no law covers it as configured")
    if record.law is None:
        why = record.native.get("law_left", "no law covers it as configured")
        raise LawDoesNotCover(f"{record.request_id}: nothing was predicted: {why}")
    source = _source(run, cell)
    family = FAMILIES[cell.family]
    sends = family.sends(family.parameters.model_validate(cell.parameters), source)
    probes = [each for each in run.requests if each.cell == cell.cell and each.role is Role.PROBE]
    outputs: list[tuple[int, ...]] = []
    sent: list[Sent] = []
    for send, probe in zip(sends, probes, strict=False):
        request = send.request(probe.request_id, outputs)
        if fingerprint(request) != probe.prompt_sha256:
            raise UsageError(
                f"{probe.request_id}: the prompt drawn again is not the recorded one; was it measured with another "
                f"hitparity, model or document?"
            )
        if probe.output_sha256 is not None:
            raise UsageError(
                f"{probe.request_id}: what was generated was left out (`contents`), and the law needs it to go on; "
                f'run the experiment with contents = "full"'
            )
        if send.reset_before:
            sent.clear()
        sent.append(Sent(request, probe.output_ids))
        outputs.append(probe.output_ids)
        if probe.request_id == record.request_id:
            break
    return World(law_id=facts["law"], options=facts["law_options"], sent=tuple(sent))


def _source(run: Run, cell: CellManifest) -> TokenSource:
    """As the runner made it; documents and model folders are looked for beside the ready experiment of that name."""
    beside = catalogue().get(run.manifest.experiment, run.folder / "run.json")
    facts = cell.facts or {}
    try:
        model = open_model(cell.model, beside)
    except HitparityError as why:
        raise UsageError(f"the run's model is needed to draw its prompts again: {why}") from None
    return TokenSource(
        cell.seed,
        min(int(facts["vocab_size"]), model.vocab_size),
        reserved=model.reserved_ids,
        granule=int(facts["granule"]),
        encode=lambda text: encode(model, text),
        read_text=lambda name: read_document(beside, name),
        locate=lambda name: beside.parent / name,
    )
