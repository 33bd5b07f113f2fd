"""Load: 100,000 requests on laws and 5,000 served ones. Do the run, its results and its reports stay usable?

Each command is a process of its own, as a user starts it. The same experiment at a tenth of the size stands beside it:
what it takes must grow no faster than the requests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak import descendants

POLL_S = 0.1
KIB, MIB = 1 << 10, 1 << 20
LAWS = """
name = "load"
models = ["tiny-qwen3"]

[[engine]]
name = "law"
label = "vllm"
law = "vllm@0.32"
options = {{ block_size = 16, num_gpu_blocks_override = 257 }}

[[engine]]
name = "law"
label = "vllm hybrid"
law = "vllm@0.33"
options = {{ groups = ["full:64", "gdn:64"], method = "mtp", num_speculative_tokens = 1 }}

[[engine]]
name = "law"
label = "vllm window"
law = "vllm@0.33"
options = {{ groups = ["full:16", "swa:16:128"] }}

[[engine]]
name = "law"
label = "sglang"
law = "sglang@0.5.23"
options = {{ page_size = 16, max_total_tokens = 4096 }}
"""
SERVED = """
name = "load"
models = ["tiny-qwen3"]

[[engine]]
name = "reference"
law = "vllm@0.32"
options = {{ law_options = {{ block_size = 16 }} }}
"""
WORKLOADS = """
[[workload]]
family = "repeat"
dense = 50
sends = 2

[[workload]]
family = "churn"
pool = 4096
length = 124
of_pool = [0.5, 1.0, 2.0]
rounds = {rounds}

[[workload]]
family = "siblings"
shared = 200
count = {count}
groups = 10
"""
ROUND = 16 + 33 + 66
"""Prompts of one round of churn at 0.5, 1 and 2 pools."""
READING = "import harness.data as d; print(len(d.load({run!r})))"


@dataclass(frozen=True, slots=True)
class Process:
    """What a command took."""

    seconds: float
    cpu_s: float
    """What of it was spent on a processor, by the command and all below it that it waited for."""
    mib: float
    """Peak resident memory of the command itself."""
    below_mib: float
    """Of all processes below it together, at most."""
    said: str


def measure() -> list[dict[str, object]]:
    """A row per experiment and size."""
    return [
        load(name, experiment, requests)
        for name, experiment, full in (("laws", LAWS, 100_000), ("reference", SERVED, 5_000))
        for requests in (full // 10, full)
    ]


def load(name: str, experiment: str, requests: int) -> dict[str, object]:
    """One row: run, load and report an experiment of about so many requests; RuntimeError where a command fails."""
    each = requests // experiment.count("[[engine]]")
    rounds = max(2, each * 2 // 5 // ROUND)
    count = (each - 100 - rounds * ROUND) // 10
    with tempfile.TemporaryDirectory(prefix="hitparity-load-") as folder:
        file = Path(folder) / "load.toml"
        file.write_text(experiment.format() + WORKLOADS.format(rounds=rounds, count=count), "utf-8")
        ran = process("-m", "harness", "run", str(file), "--results", folder)
        (run,) = (Path(folder) / "load").glob("*/")
        read = process("-c", READING.format(run=str(run)))
        markdown = process("-m", "harness", "report", str(run), "--out", f"{folder}/report")
        page = process("-m", "harness", "report", str(run), "--html", f"{folder}/page.html")
        return {
            "run": name,
            "requests": int(read.said),
            "run_s": round(ran.seconds),
            "run_cpu_s": round(ran.cpu_s),
            "harness_mib": round(ran.mib),
            "worker_mib": round(ran.below_mib),
            "results_mib": _mib(*run.glob("*/requests.jsonl")),
            "load_s": round(read.seconds, 1),
            "load_cpu_s": round(read.cpu_s, 1),
            "load_mib": round(read.mib),
            "report_s": round(markdown.seconds, 1),
            "report_cpu_s": round(markdown.cpu_s, 1),
            "report_mib": round(markdown.mib),
            "markdown_kib": (Path(folder) / "report" / "report.md").stat().st_size // KIB,
            "html_s": round(page.seconds, 1),
            "html_cpu_s": round(page.cpu_s, 1),
            "html_mib": _mib(Path(folder) / "page.html"),
        }


def process(*arguments: str) -> Process:
    """Run Python with these arguments to its end."""
    begin, cpu_before, own, below = time.monotonic(), _cpu_s(), 0.0, 0.0
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        started = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT)
        while started.poll() is None:
            own = max(own, _peak_mib(started.pid))
            below = max(below, sum(_peak_mib(pid) for pid in descendants(started.pid)))
            time.sleep(POLL_S)
        seconds = time.monotonic() - begin
        output.seek(0)
        said = output.read()
    if started.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: exit status {started.returncode}: {said[-2000:]}")
    return Process(seconds, _cpu_s() - cpu_before, own, below, said)


def _cpu_s() -> float:
    """Of all children that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def _peak_mib(pid: int) -> float:
    """Most resident memory that a process ever had; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / KIB for line in lines if line.startswith("VmHWM:")), 0.0)


def _mib(*paths: Path) -> float:
    return round(sum(path.stat().st_size for path in paths) / MIB, 1)
