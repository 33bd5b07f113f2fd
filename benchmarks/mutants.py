"""Mutants: faults put into ledgers, laws and adapters by cosmic-ray's operators. Does the suite catch them?

A place is drawn first and then one of the operators that apply there, so that `+`, which has eleven, does not crowd out
the rest. Every mutant is a copy of the sources in a forked process with the offline tests of its part. Left out: `|`
(here the annotations') and replacements by or of `is`, which mean the same for the values compared here;
decorators (the flags of a dataclass compute nothing).

HITPARITY_MUTANTS: mutants per part (default 60). HITPARITY_MUTANTS_PARTS: only parts whose name begins so (comma).
HITPARITY_MUTANTS_SECONDS: draw no further mutant of a part after this time (default: no limit).
HITPARITY_MUTANTS_LOG: append each verdict to this file and take those in it as known; delete it when sources change.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import numpy as np
import pydantic
import pytest

ROOT = Path(__file__).parent.parent
TOPS = ("vocabulary", "adapters", "reference_engine", "workloads", "checkpoints", "harness", "tests")
LEFT_OUT = ("BitOr", "_Is", "Variable", "Decorator")
SEED = 7
CAUGHT, SURVIVED, SAME_AS = "caught", "survived", "equivalent"


@dataclass(frozen=True, slots=True)
class Part:
    """Sources that are mutated together (globs) and the tests that should notice, the fastest first."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    only: str = ""  # pytest's -k

    @property
    def package(self) -> str:
        """What the share is reported for."""
        return self.name.split(":")[0]


LAWS, FULL = "reference_engine/laws", "tests/laws/test_full_attention.py"
PARTS = (
    Part("ledger:vocabulary", ("vocabulary/ledger.py",), ("tests/vocabulary/test_ledger.py",)),
    Part("ledger:judge", ("harness/judge.py",), ("tests/harness/test_judge.py",)),
    Part("laws:vllm", (f"{LAWS}/vllm/*.py",), ("tests/laws/test_vllm*.py", FULL), "not sglang"),
    Part("laws:sglang", (f"{LAWS}/sglang/*.py",), ("tests/laws/test_sglang*.py", FULL), "not vllm"),
    Part("laws:llama.cpp", (f"{LAWS}/llama_cpp/*.py",), ("tests/laws/test_llama_cpp*.py", "tests/laws/test_slots.py")),
    Part(
        "laws:others",
        (f"{LAWS}/tensorrt_llm/*.py", f"{LAWS}/deepinfer/*.py"),
        ("tests/laws/test_tensorrt_llm.py", "tests/laws/test_deepinfer.py", "tests/laws/test_trtllm*.py"),
    ),
    Part("laws:parts", (f"{LAWS}/parts/*.py",), ("tests/laws/test_chained.py", FULL, "tests/laws/test_*.py")),
    Part(
        "adapters:readings",
        ("adapters/*/transcript.py", "adapters/*/probe_log.py", "adapters/*/server_log.py", "adapters/*/completion.py"),
        ("tests/adapters/test_*_decode.py",),
    ),
    Part(
        "adapters:laws",
        ("adapters/vllm/law.py", "adapters/llama_cpp/law.py", "adapters/sglang/facts.py", "adapters/*/options.py"),
        ("tests/adapters/test_*_law*.py", "tests/adapters/test_*_decode.py", "tests/adapters/test_[lsv]*.py"),
    ),
    Part("adapters:http", ("adapters/http.py",), ("tests/adapters/test_http.py",)),
)
SAME: dict[str, str] = {
    "adapters/llama_cpp/completion.py:83 NumberReplacer#13": "the time of an empty stream, which is refused unread",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the operator's `occurrence`-th place in a file."""

    file: str
    line: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator}#{self.occurrence}"


def measure() -> list[dict[str, object]]:
    """One row per package; ImportError where cosmic-ray is missing."""
    chosen = tuple(os.environ.get("HITPARITY_MUTANTS_PARTS", "").split(","))
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: {CAUGHT: [], SURVIVED: [], SAME_AS: []})
    with tempfile.TemporaryDirectory(prefix="hitparity-mutants-") as name:
        copy = Path(name)
        for top in TOPS:
            shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for part in PARTS:
            for mutant, verdict in _verdicts(copy, part) if part.name.startswith(chosen) else ():
                print(f"{part.name}  {mutant}  {verdict}", flush=True)
                found[part.package][verdict].append(str(mutant))
    return [
        {
            "package": package,
            "mutants": len(of[CAUGHT]) + len(of[SURVIVED]),
            "caught": len(of[CAUGHT]),
            "share": f"{len(of[CAUGHT]) / max(1, len(of[CAUGHT]) + len(of[SURVIVED])):.1%}",
            "survivors": "; ".join(of[SURVIVED]),
            "equivalent": "; ".join(f"{mutant} ({SAME[mutant]})" for mutant in of[SAME_AS]),
        }
        for package, of in found.items()
    ]


def _verdicts(copy: Path, part: Part) -> Iterator[tuple[Mutant, str]]:
    """The part's mutants with what came of them; those for which no time is left are not drawn."""
    log = Path(os.environ.get("HITPARITY_MUTANTS_LOG", os.devnull))
    known = dict(line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()) if log.is_file() else {}
    limit, stop = None, time.monotonic() + float(os.environ.get("HITPARITY_MUTANTS_SECONDS", "inf"))
    for mutant in _drawn(part, int(os.environ.get("HITPARITY_MUTANTS", "60"))):
        verdict = SAME_AS if str(mutant) in SAME else known.get(str(mutant))
        if verdict is None and time.monotonic() < stop:
            limit = limit or _limit(copy, part)
            verdict = CAUGHT if _caught(copy, part, mutant, limit) else SURVIVED
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{mutant}\t{verdict}\n")
        if verdict is not None:
            yield mutant, verdict


def _limit(copy: Path, part: Part) -> float:
    """Seconds a mutant gets; RuntimeError where the tests fail without one."""
    begin = time.monotonic()
    if _fails(copy, part, 600):
        raise RuntimeError(f"{part.name}: the tests fail without a mutant; run pytest {' '.join(part.tests)}")
    return 3 * (time.monotonic() - begin) + 10


def _drawn(part: Part, size: int) -> list[Mutant]:
    """A sample that depends on the sources, the size and the seed only."""
    rng = random.Random(SEED)
    files = [path for pattern in part.sources for path in sorted(ROOT.glob(pattern))]
    places = [place for path in files for place in _places(path)]
    return [rng.choice(place) for place in rng.sample(places, min(size, len(places)))]


def _places(path: Path) -> Iterator[list[Mutant]]:
    """The mutants of a file, those of one place and kind together."""
    try:
        from cosmic_ray.ast import ast_nodes, get_ast_from_path
        from cosmic_ray.plugins import get_operator, operator_names
    except ImportError as missing:
        raise ImportError("mutants: cosmic-ray is not installed; pip install 'cosmic-ray>=8.3'") from missing
    lines = path.read_text(encoding="utf-8").splitlines()
    nodes = list(ast_nodes(get_ast_from_path(path)))
    file = str(path.relative_to(ROOT))
    places: dict[tuple[object, str], list[Mutant]] = defaultdict(list)
    for name in operator_names():
        if any(part in name for part in LEFT_OUT):
            continue
        operator = get_operator(name)()
        found = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(found):
            kind = name.split("_")[0]
            if lines[start[0] - 1].lstrip().startswith("@"):
                continue
            places[start, kind].append(Mutant(file, start[0], name.removeprefix("core/"), occurrence))
    yield from (places[key] for key in sorted(places))


def _caught(copy: Path, part: Part, mutant: Mutant, limit: float) -> bool:
    """Put the fault into the copy, run its tests, take it out again."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    target = copy / mutant.file
    source = target.read_text(encoding="utf-8")
    code = mutate_code(source, get_operator("core/" + mutant.operator)(), mutant.occurrence)
    if code is None:
        raise RuntimeError(f"{mutant}: cosmic-ray finds no such place any more")
    target.write_text(code, encoding="utf-8")
    try:
        return _fails(copy, part, limit)
    finally:
        target.write_text(source, encoding="utf-8")


def _fails(copy: Path, part: Part, limit: float) -> bool:
    """Whether a test fails, or does not end in `limit` seconds."""
    child = multiprocessing.get_context("fork").Process(target=_pytest, args=(copy, part))
    child.start()
    child.join(limit)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode != 0


def _pytest(copy: Path, part: Part) -> None:
    """In the child: the copy's own modules instead of those already imported."""
    for name in [name for name in sys.modules if name.split(".")[0] in TOPS]:
        del sys.modules[name]
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ.pop("CI", None)
    found = dict.fromkeys(str(path) for pattern in part.tests for path in sorted(copy.glob(pattern)))
    asked = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--hypothesis-seed=0", "-m", "not live"]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = pytest.main([*asked, "-k", part.only, *found])
    os._exit(int(code))


PRELOADED = (hypothesis, np, pydantic)  # what every child would import again
