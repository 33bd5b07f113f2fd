"""docs/measurements.md, written from benchmarks/results/*.json after every benchmark."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "measurements.md"
MEANINGS = {
    "client_floor": "Time to first token of our HTTP client against a server that computes nothing. A TTFT near it "
    "says nothing about an engine.",
    "overhead": "Time per request of a cell that is not spent inside the engine: judging, hashing, writing the line, "
    "resets. Laws answer in no time, so their rows are the harness alone.",
    "law_speed": "A prompt's whole way through a law (`send`, `finish`, ledger included) beside the same prompt's way "
    "through the engine's own cache code, in one run; millions of prompt tokens per second, medians. `lookup` is the "
    "engine's lookup alone, without hashing, allocation and insertion. `resident`: prompts in the cache.",
    "trace_speed": "A generated trace in Mooncake's format, file to result, one process each, in turns, medians: our "
    "laws with a ledger per request beside two block-level simulators. `one pass`: plain full attention at every pool "
    "size (`simulate --curve`) with totals by cause. Later rows: cost and memory over the number of requests.",
    "trace_cross": "Tokens hit on the plain full-attention case without a limit, by our law and by four other tools; "
    "`predicted` is their number as our ledger gives it (docs/simulate.md says why they differ).",
    "calibration": "How often `hitparity compare --max-slowdown` fails on simulated times, 2,000 comparisons a number: "
    "`false_alarms` where nothing changed, `power_at_N_percent` where the candidate is N % slower, `passed_unchanged` "
    "how often an unchanged candidate passes (the rest is inconclusive). benchmarks/calibration.py says what the kinds "
    "of noise are. `starts` is what no statistics over the pairs of one process start can see: give a threshold well "
    "above what two starts differ by.",
    "soak": "The same cells on engines that are started again and again (`python -m benchmarks soak --minutes 60`, a "
    "third for each engine): memory of harness and engine, requests and open descriptors, medians of the first and the "
    "last third of the starts. `requests_per_s` is by the clock; `requests_per_yard` by processor time, in units of a "
    "fixed loop timed in each round, so that other work on the machine does not change it. "
    "`engine_growth_in_a_start_mib`: memory of the engine's processes from the second cell to the sixth.",
    "load": "`hitparity run` of very many requests, `load()` of their results and both reports, each command a process "
    "of its own (`python -m benchmarks load`), at a tenth of the size and whole. Memory is the peak of the command "
    "itself; `worker_mib` of the processes below it. `run_s` holds the report that a run ends with.",
    "mutants": "Faults put into the sources by cosmic-ray's operators, one at a time, drawn with a fixed seed "
    "(`python -m benchmarks mutants`); caught: a test that executes the line failed or did not end, engines left out. "
    "`survivors` are gaps in these tests; the number of `equivalent` ones, which no test can tell from the original or "
    "which change only speed, is apart (benchmarks/mutants.py says why of each).",
    "reference_speed": "Where the reference engine's time goes on SmolLM2, in this process: TTFT cold and with 14 "
    "tokens behind a hit, beside the model's matrix products alone (`products_ms`: the same shapes, nothing else). "
    "Shares are those of torch's profiler.",
}


def write_page(results: Path) -> None:
    """Replace the page; benchmarks without a result are left out."""
    lines = [
        "# Measurements",
        "",
        "Made by `make bench`; the machines here are shared and noisy, so read ratios.",
        "Times of whole requests, engine beside engine: [latency.md](latency.md).",
        "",
    ]
    for name, meaning in MEANINGS.items():
        path = results / f"{name}.json"
        if path.is_file():
            document = json.loads(path.read_text(encoding="utf-8"))
            machine = document["machine"]
            rows = document["rows"]
            lines += [f"## {name}", "", meaning, ""]
            lines += [
                f"{document['date']}, {machine['processor']} ({machine['instructions']}), {machine['cores']} "
                f"core{'s' * (machine['cores'] > 1)}, Python {machine['python']}.",
                "",
            ]
            if rows:
                heads = list(dict.fromkeys(head for row in rows for head in row))
                lines.append("| " + " | ".join(heads) + " |")
                lines.append("|" + "---|" * len(heads))
                cells = [[str(row.get(head, "")).replace("|", "\\|") for head in heads] for row in rows]
                lines += ["| " + " | ".join(row) + " |" for row in cells]
                lines.append("")
    PAGE.write_text("\n".join(lines), encoding="utf-8")
