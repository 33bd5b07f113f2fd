"""JUnit XML of a run: one test case per cell and law, so that a CI system shows runs as it shows tests.

failure   the engine contradicts its law, its own numbers or its cold output; the text holds the ledgers
error     the cell did not complete, or leaves a question open, so nothing is proved
skipped   no law covers the engine, or the law itself answered: nothing was tested
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

from harness.outcome import INCONCLUSIVE
from harness.overview import CellLine, overview
from harness.records import CellStatus, FindingKind, RequestRecord
from harness.store import Run
from harness.wording import count, is_unusable, number, plain, send_name

SHOWN = 20
"""Requests with their ledgers in one failure; the rest is counted."""


def junit_xml(run: Run) -> str:
    """The document; the same run gives the same text."""
    seen = overview(run)
    root = ET.Element("testsuites", name=f"hitparity {seen.experiment}")
    cases: list[ET.Element] = []
    for label in dict.fromkeys(cell.label for cell in seen.cells):
        cells = [cell for cell in seen.cells if cell.label == label]
        suite = ET.SubElement(root, "testsuite", name=label or "cells that never ran", timestamp=seen.started)
        own = [_case(suite, cell, [r for r in run.requests if r.cell == cell.cell]) for cell in cells]
        _count(suite, own, sum(cell.total_ns for cell in cells))
        cases += own
    _count(root, cases, sum(cell.total_ns for cell in seen.cells))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, cell: CellLine, requests: Sequence[RequestRecord]) -> ET.Element:
    law = f" by {cell.law}" if cell.law else ""
    name = f"{cell.workload} on {cell.model}{law}" if cell.workload else cell.cell
    case = ET.SubElement(
        suite, "testcase", classname=cell.label or cell.cell, name=name, time=f"{cell.total_ns / 1e9:.3f}"
    )
    kinds = sorted({finding.kind for finding in cell.findings})
    if contradictions := [kind for kind in kinds if kind not in INCONCLUSIVE]:
        _problem(case, "failure", contradictions, _failure_text(cell, requests), len(cell.findings))
    elif cell.status is not CellStatus.COMPLETE:
        status = cell.status.value if cell.status else "not finished"
        ET.SubElement(case, "error", type=status, message=f"{status}: {cell.why}")
    elif kinds:
        _problem(case, "error", kinds, _failure_text(cell, requests), len(cell.findings))
    elif cell.predicted:
        ET.SubElement(case, "skipped", message="a prediction: the law itself answered and no engine ran")
    elif cell.law is None:
        ET.SubElement(case, "skipped", message="no law covers the engine as configured: nothing is claimed")
    return case


def _problem(case: ET.Element, tag: str, kinds: Sequence[FindingKind], text: str, findings: int) -> None:
    names = ", ".join(kind.value for kind in kinds)
    problem = ET.SubElement(case, tag, type=names, message=f"{number(findings, 'finding')}: {names}")
    problem.text = text


def _failure_text(cell: CellLine, requests: Iterable[RequestRecord]) -> str:
    """The cell's own findings, then each request with one: what was seen, what the law says, the ledger."""
    wrong = [r for r in requests if r.findings]
    of_requests = {f"{plain(r.workload)} on {plain(r.model)}, {send_name(r)}" for r in wrong}
    lines = [f"{f.kind.value}: {f.detail}" for f in cell.findings if f.where not in of_requests]
    for r in wrong[:SHOWN]:
        lines.append(f"{send_name(r)}: L {r.prompt_len}, P {r.lcp_len}, hit {count(r.hit_len)}, start ")
        lines[-1] += f"{count(r.position_start)}; the law says {count(r.expected_hit_len)}"
        lines += [f"  {finding.kind.value}: {plain(finding.detail)}" for finding in r.findings]
        lines.append(f"  ledger: {ledger_text(r)}")
    if len(wrong) > SHOWN:
        lines.append(f"and {number(len(wrong) - SHOWN, 'request')} more with findings")
    return "\n" + "\n".join(lines) + "\n"


def ledger_text(request: RequestRecord) -> str:
    """Such as "[0, 64) reused, [64, 65) last_token"."""
    if not request.ledger:
        return "unusable: a number is out of range" if is_unusable(request) else "unknown: no hit and no start shown"
    return ", ".join(f"[{e.start}, {e.end}) {e.cause.value}" for e in request.ledger)


def _count(element: ET.Element, cases: Sequence[ET.Element], total_ns: int) -> None:
    element.set("tests", str(len(cases)))
    for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(plural, str(sum(case.find(tag) is not None for case in cases)))
    element.set("time", f"{total_ns / 1e9:.3f}")
