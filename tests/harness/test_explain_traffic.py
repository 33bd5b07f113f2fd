"""A trace explained by its blocks against the same trace explained by tokens drawn for it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.explain import traffic as module
from harness.explain.traffic import traffic
from harness.simulate.trace_file import TraceFile
from harness.terminal import working
from vocabulary.ledger import Cause
from workloads.traces.generate import Traffic, generate
from workloads.traces.write import write_trace

LAWS: list[tuple[str, dict[str, Any]]] = [
    ("vllm@0.32", {"num_blocks": 1000}),
    ("vllm@0.32", {"groups": ["full:16", "swa:16:128"], "num_blocks": 2000}),
    ("sglang@0.5.23", {"page_size": 16, "max_total_tokens": 16000}),
    ("llama.cpp", {"n_parallel": 4}),
]


@pytest.mark.parametrize(("law_id", "options"), LAWS)
@pytest.mark.parametrize(("name", "block"), [("mooncake", 512), ("bailian", 16)])
def test_blocks_and_tokens_explain_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, law_id: str, options: dict[str, Any], name: str, block: int
) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(generate(Traffic(requests=120, mean_len=1200)), path, name, block)
    told: list[str] = []
    trace = TraceFile(path=path)
    by_blocks = traffic(trace, law_id, options, progress=told.append)
    monkeypatch.setattr(module, "_by_blocks", module._sent)
    monkeypatch.setattr("reference_engine.laws.vllm.law.VllmLaw.replay", lambda law: law.serve)
    monkeypatch.setattr("reference_engine.laws.llama_cpp.server.LlamaCppServer.replay", lambda law: law.serve)
    assert traffic(trace, law_id, options) == by_blocks
    assert by_blocks.reused > 0 and (law_id == "llama.cpp" or by_blocks.causes[Cause.EVICTED].tokens > 0)
    assert told[0] == f"{law_id}: 0 requests" and any(": " in each.partition(": ")[2] for each in told)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_moving_line_only_where_a_terminal_shows_it(terminal: bool) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=60, _environ={"TERM": "xterm"})
    with working(console) as progress:
        progress("[bold] 1,024 requests")
    assert ("[bold] 1,024 requests" in shown.getvalue()) == terminal
