"""A trace of 12,000 requests and some 131 million tokens through our laws and through two block-level simulators.

One process each, trace file to result, in turns; medians. `cpu_s` is what the machine's other work disturbs least.
kvcache-simulator replays 512-token blocks in C++ for its 15 pool sizes, llmtrafficlens in Python for its own sizes.
Ours: `one pass` is plain full attention in blocks of 16 tokens at every pool size, with totals by cause (`simulate
--curve`); the others are whole laws with pools and a ledger per request. vLLM's for full attention alone goes by
stretches, beside windows by blocks.
`imports_%` and `reading_%` are their shares of `cpu_s`: a process that only imports, and one that also reads the trace
and numbers its blocks; the rest is the law, or the pass, with its ledgers.
`requests` rows of one kind, of the pass and of a whole law, show that cost is linear and memory bounded;
HITPARITY_TRACE_REQUESTS adds longer ones.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import trace_tools
from workloads.traces.generate import Traffic, generate
from workloads.traces.write import write_trace

REQUESTS, MEAN_LEN, ROUNDS = 12_000, 11_000, 5
POOL = 200_000
Row = dict[str, object]
LAWS: dict[str, tuple[str, dict[str, object]]] = {
    "vllm@0.32, 16-token blocks": ("vllm@0.32", {"block_size": 16, "num_blocks": POOL}),
    "vllm@0.32, windows of 4,096 too": ("vllm@0.32", {"groups": ["full:16", "swa:16:4096"], "num_blocks": 2 * POOL}),
    "sglang@0.5.23, page 16": ("sglang@0.5.23", {"page_size": 16, "max_total_tokens": POOL * 16}),
    "llama.cpp, 8 slots": ("llama.cpp", {"n_parallel": 8}),
}
LONG = "vllm@0.32, 16-token blocks"
LAW = """
import sys
from pathlib import Path
from harness.simulate.cell import run_job
from harness.simulate.job import Job
from harness.simulate.trace_file import TraceFile
import json
trace = TraceFile(path=Path(sys.argv[1]), format="mooncake")
run_job(Job(trace=trace, law=sys.argv[2], options=json.loads(sys.argv[3])), Path(sys.argv[4]), requests=False)
"""
ONE_PASS = """
import sys
from pathlib import Path
from harness.simulate.curve import curve
from harness.simulate.feed import numbered, reader_of
from harness.simulate.trace_file import TraceFile
made = curve(numbered(reader_of(TraceFile(path=Path(sys.argv[1]), format="mooncake")), 1), 16)
print(made.hit_tokens(200_000))
"""
IMPORTS = {
    ONE_PASS: "import harness.simulate.curve, harness.simulate.feed",
    LAW: "import harness.simulate.cell, reference_engine.laws.vllm",
}
READING = """
import sys
from pathlib import Path
from harness.simulate.feed import numbered, reader_of
from harness.simulate.trace_file import TraceFile
for _ in numbered(reader_of(TraceFile(path=Path(sys.argv[1]), format="mooncake")), 1):
    pass
"""


def measure() -> list[Row]:
    """Rows by tool, then by number of requests."""
    with tempfile.TemporaryDirectory(prefix="hitparity-trace-") as text:
        folder = Path(text)
        trace, tokens = _trace(folder, REQUESTS)
        commands: dict[str, Sequence[str]] = {
            "kvcache-simulator 0.1.3": trace_tools.kvcache_simulator(trace, folder / "k.json", block=512),
            "llmtrafficlens 0.13.4": trace_tools.llmtrafficlens(trace, folder / "l"),
            "hitparity one pass": [sys.executable, "-c", ONE_PASS, str(trace), str(POOL)],
        }
        for name, (law, options) in LAWS.items():
            commands[f"hitparity {name}"] = [
                *(sys.executable, "-c", LAW, str(trace), law, json.dumps(options), str(folder / "cell")),
            ]
        _run(commands["kvcache-simulator 0.1.3"])  # compiles its core on first use
        taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                taken[name].append(_run(command))
        rows = [_row(name, REQUESTS, tokens, runs) for name, runs in taken.items()]
        base = float(str(rows[0]["cpu_s"]))
        imports = {script: _cpu(["-c", text]) for script, text in IMPORTS.items()}
        reading = _cpu(["-c", READING, str(trace)]) - _cpu(["-c", IMPORTS[ONE_PASS]])
        for row, command in zip(rows, commands.values(), strict=True):
            cpu = float(str(row["cpu_s"]))
            row["times_kvcache_simulator"] = round(cpu / base, 2)
            if command[0] == sys.executable and command[2] in imports:
                row["imports_%"] = round(100 * imports[command[2]] / cpu)
                row["reading_%"] = round(100 * reading / cpu)
        for count in (3_000, 24_000, *_more()):
            longer, tokens = _trace(folder, count)
            law, options = LAWS[LONG]
            for name, arguments in (
                ("hitparity one pass", [ONE_PASS, str(longer), str(POOL)]),
                (f"hitparity {LONG}", [LAW, str(longer), law, json.dumps(options), str(folder / "cell")]),
            ):
                rows.append(_row(name, count, tokens, [_run([sys.executable, "-c", *arguments])]))
            longer.unlink()
    return rows


def _cpu(arguments: Sequence[str]) -> float:
    """Processor seconds of a Python process, the least of three."""
    return min(_run([sys.executable, *arguments])[1] for _ in range(3))


def _more() -> list[int]:
    asked = os.environ.get("HITPARITY_TRACE_REQUESTS")
    return [int(asked)] if asked else []


def _trace(folder: Path, requests: int) -> tuple[Path, int]:
    path = folder / f"{requests}.jsonl"
    _, tokens = write_trace(generate(Traffic(requests=requests, mean_len=MEAN_LEN)), path, "mooncake", 512)
    return path, tokens


def _run(command: Sequence[str]) -> tuple[float, float, int]:
    """Wall and processor seconds, and the largest memory of the process in MiB."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    probe = [sys.executable, "-c", PROBE, *command]
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # nothing here multiplies matrices
    done = subprocess.run(probe, check=True, capture_output=True, text=True, env=alone)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, int(done.stdout.split()[-1]) // 1024


PROBE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def _row(name: str, requests: int, tokens: int, runs: Sequence[tuple[float, float, int]]) -> Row:
    wall, cpu, memory = (statistics.median(values) for values in zip(*runs, strict=True))
    return {
        "tool": name,
        "requests": requests,
        "Mtokens": round(tokens / 1e6, 1),
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "cpu_us_per_request": round(cpu / requests * 1e6),
        "peak_MiB": memory,
    }
