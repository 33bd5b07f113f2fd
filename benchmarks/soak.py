"""Soak: the same small experiment again and again on tiny models. Does anything grow, leak or slow down?

Each round starts every engine anew and gives it the same cells, so that what a start leaves behind shows from round to
round, and what a request leaves behind in a worker shows from cell to cell. Compared are the medians of the first and
the last third of the rounds; the first round only warms up. `requests_per_s` depends on the machine's other work;
`requests_per_yard` is by processor time of harness and engines together, in units of a fixed loop timed in each round.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from harness.experiment import load_experiment
from harness.plan import Cell, Group, plan
from harness.records import CellManifest, CellStatus, RequestRecord
from harness.runner import Runner, open_run

CELLS = 6
ENGINES = ("law", "reference", "llama.cpp")
EXPERIMENT = """
name = "soak"
models = ["tiny-qwen3"]

[[engine]]
name = "{engine}"
{law}
"""
WORKLOAD = """
[[workload]]
family = "changed"
name = "changed-{number}"
shared = 256
seed = {number}
"""
MIB = 1 << 20


class Watch:
    """A progress that looks at the engine's processes after every cell."""

    def __init__(self) -> None:
        self.engine_mib: list[float] = []
        self.requests = 0

    def group(self, group: Group, cells: int) -> None:
        """Nothing to do."""

    def request(self, cell: Cell, record: RequestRecord) -> None:
        """Counted."""
        self.requests += 1

    def remark(self, cell: Cell, text: str) -> None:
        """There is nothing to remark in a new run."""

    def cell(self, cell: Cell, manifest: CellManifest) -> None:
        """Memory of the engine; RuntimeError where the cell is not as it should be."""
        if manifest.status is not CellStatus.COMPLETE or not manifest.valid:
            raise RuntimeError(f"{manifest.cell}: {manifest.status} {manifest.why} {manifest.findings}")
        self.engine_mib.append(sum(resident_mib(pid) for pid in descendants(os.getpid())))


def measure(minutes: float = 60, engines: Sequence[str] = ENGINES) -> list[dict[str, object]]:
    """One row per engine, each given its share of the time."""
    return [_soak(engine, minutes * 60 / len(engines)) for engine in engines]


def _soak(engine: str, seconds: float) -> dict[str, object]:
    own, engine_mib, growth, speed, yards, descriptors = [], [], [], [], [], []
    before = set(descendants(os.getpid()))
    requests, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hitparity-soak-") as name:
        folder = Path(name)
        law = 'law = "vllm@0.32"' if engine in ("law", "reference") else ""
        file = folder / "soak.toml"
        workloads = "".join(WORKLOAD.format(number=number) for number in range(CELLS))
        file.write_text(EXPERIMENT.format(engine=engine, law=law) + workloads, encoding="utf-8")
        experiment = load_experiment(file)
        groups = plan(experiment)
        while len(own) < 4 or time.monotonic() < begin + seconds:
            watch, started, spent = Watch(), time.monotonic(), cpu_s()
            run = open_run(experiment, file, groups, folder, resume=False)
            Runner(experiment, file, run, watch).run(groups)
            speed.append(watch.requests / (time.monotonic() - started))
            yards.append(watch.requests / (cpu_s() - spent) * _yard_s())
            shutil.rmtree(run)
            gc.collect()
            requests += watch.requests
            own.append(resident_mib(os.getpid()))
            engine_mib.append(watch.engine_mib[-1])
            growth.append(watch.engine_mib[-1] - watch.engine_mib[1])
            descriptors.append(len(list(Path("/proc/self/fd").iterdir())))
    return {
        "engine": engine,
        "minutes": round((time.monotonic() - begin) / 60, 1),
        "starts": len(own),
        "requests": requests,
        "harness_mib": _first_and_last(own),
        "engine_mib": _first_and_last(engine_mib),
        "engine_growth_in_a_start_mib": round(median(growth), 1),
        "requests_per_s": _first_and_last(speed),
        "requests_per_yard": _first_and_last(yards),
        "descriptors": _first_and_last(descriptors),
        "processes_left": len(set(descendants(os.getpid())) - before),
    }


def _first_and_last(values: Sequence[float]) -> str:
    """Medians of the first and the last third, without the round that warms up."""
    third = max(1, (len(values) - 1) // 3)
    return f"{median(values[1 : 1 + third]):.4g} to {median(values[-third:]):.4g}"


def cpu_s() -> float:
    """Processor seconds of this process and of all children that have ended."""
    return sum(os.times()[:4])


def _yard_s() -> float:
    """Processor seconds of a fixed loop."""
    begin = cpu_s()
    sum(number * number for number in range(2_000_000))
    return cpu_s() - begin


def descendants(pid: int) -> list[int]:
    """Living processes below one, by /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
        except OSError:  # ended meanwhile
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def resident_mib(pid: int) -> float:
    """Memory of a process that is its own or shared; 0 when it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB
