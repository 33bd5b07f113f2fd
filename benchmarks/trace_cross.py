"""Our laws beside four other cache models on the plain full-attention case, without a limit: where they agree.

Two count a trace's own blocks: kvcache-simulator the last, partial one too, so its hits are all that is not `novel`;
llmtrafficlens counts that block as if it were whole. Two hash blocks of the engine's size (kvlint, prefixlens) and have
no cap of L-1: they differ from vLLM where a prompt of whole blocks comes again. `predicted` is their number as our
ledger gives it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import trace_tools
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest
from vocabulary.ledger import Cause, Ledger
from workloads.traces.generate import Traffic, generate
from workloads.traces.mooncake import Mooncake
from workloads.traces.token_form import TokenForm
from workloads.traces.write import write_trace

BLOCK, TRACE_BLOCK = 16, 512
TRAFFIC = Traffic(requests=400, seed=11, mean_len=1600)
Row = dict[str, object]


def measure() -> list[Row]:
    """One row per tool and case; AssertionError where a difference is not the one explained."""
    with tempfile.TemporaryDirectory(prefix="hitparity-cross-") as text:
        folder = Path(text)
        trace = folder / "trace.jsonl"
        write_trace(generate(TRAFFIC), trace, "mooncake", TRACE_BLOCK)
        rows = _by_engine_blocks(_prompts(trace), folder) + _by_trace_blocks("traffic", trace, folder)
        row = {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}
        trace.write_text(2 * (json.dumps(row) + "\n"), encoding="utf-8")
        rows += _by_trace_blocks("1000 twice", trace, folder)
    assert all(row["theirs"] == row["predicted"] for row in rows), rows
    return rows


def _prompts(trace: Path) -> list[np.ndarray]:
    form = TokenForm(150_000)
    return [form.ids(request) for request in Mooncake(trace)]


def _ledgers(prompts: list[np.ndarray]) -> list[Ledger]:
    law, ledgers = make_law("vllm@0.32", {"block_size": BLOCK}), []
    for number, ids in enumerate(prompts):
        request = TokenRequest(request_id=str(number), ids=tuple(ids.tolist()))
        ledgers.append(law.send(request).ledger)
        law.finish(request, (1,))
    return ledgers


def _by_engine_blocks(prompts: list[np.ndarray], folder: Path) -> list[Row]:
    repeat = [np.arange(256), np.arange(256)]
    tail = [np.arange(260), np.arange(260)]
    rows = []
    for name, sent in (("traffic", prompts), ("256 twice", repeat), ("260 twice", tail)):
        path = folder / "prompts.jsonl"
        path.write_text("".join(json.dumps(ids.tolist()) + "\n" for ids in sent), encoding="utf-8")
        ledgers = _ledgers(sent)
        shared = [ledger.prompt_len - ledger.tokens(Cause.NOVEL) for ledger in ledgers]
        for tool in ("kvlint", "prefixlens"):
            theirs = trace_tools.hits(tool, path, BLOCK)
            assert theirs == [tokens // BLOCK * BLOCK for tokens in shared]
            differ = sum(a != b.reused for a, b in zip(theirs, ledgers, strict=True))
            rows.append(
                _row(tool, name, sum(b.reused for b in ledgers), sum(theirs), sum(t // 16 * 16 for t in shared))
            )
            rows[-1]["requests_that_differ"] = differ
    return rows


def _by_trace_blocks(case: str, trace: Path, folder: Path) -> list[Row]:
    """Both measure the second half of a trace, and the second gives a rate of four digits."""
    out, name = folder / "out.json", f"{case}, 2nd half"
    ledgers = _ledgers(_prompts(trace))
    half = ledgers[len(ledgers) // 2 :]
    ours, tokens = sum(ledger.reused for ledger in half), sum(ledger.prompt_len for ledger in half)
    shared = [ledger.prompt_len - ledger.tokens(Cause.NOVEL) for ledger in half]
    subprocess.run(trace_tools.kvcache_simulator(trace, out, block=TRACE_BLOCK), check=True, capture_output=True)
    ceiling = json.loads(out.read_text(encoding="utf-8"))["ceiling"]
    assert ceiling["totalTokens"] == tokens
    rows = [_row("kvcache-simulator", name, ours, ceiling["hitTokens"], sum(shared))]
    subprocess.run(trace_tools.llmtrafficlens(trace, out.with_suffix("")), check=True, capture_output=True)
    rate = json.loads(out.read_text(encoding="utf-8"))["reuse_potential"]["ceiling"]
    filled = sum(-(-each // TRACE_BLOCK) * TRACE_BLOCK for each in shared)
    rows.append(_row("llmtrafficlens", f"{name}, rate", round(ours / tokens, 4), rate, round(filled / tokens, 4)))
    return rows


def _row(tool: str, case: str, ours: float, theirs: float, predicted: float) -> Row:
    return {"tool": tool, "case": case, "vllm@0.32": ours, "theirs": theirs, "predicted": predicted}
