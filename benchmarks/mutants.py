"""Mutants: faults put into ledgers, laws and adapters by cosmic-ray's operators. Does the suite catch them?

A place is drawn first and then one of the operators that apply there, so that `+`, which has eleven, does not crowd out
the rest; a larger sample holds the smaller one. Left out: `|` (here the annotations') and replacements by or of `is`,
which mean the same for the values compared here; decorators (the flags of a dataclass compute nothing);
`check_integrity` and its helpers, by which tests look at a law's books.

The tests of a part run once with coverage.py, which says what each executes and takes. Every mutant is then a copy of
the sources in a forked process with the tests that execute its statement, the fastest first (statements executed at
import: every test, those of the file first). Hypothesis does not shrink there.

HITPARITY_MUTANTS_SEED: another sample. One whose survivors got tests says nothing about the rest any longer.
HITPARITY_MUTANTS: mutants per part (default 60). HITPARITY_MUTANTS_PARTS: only parts whose name begins so (comma).
HITPARITY_MUTANTS_SECONDS: draw no further mutant of a part after this time (default: no limit).
HITPARITY_MUTANTS_LOG: append each verdict to this file and take those in it as known: remove the survivors from it when
tests are added, and all of it when sources change in more than the lines named.
"""

from __future__ import annotations

import ast
import importlib
import io
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from coverage import Coverage

ROOT = Path(__file__).parent.parent
TOPS = ("vocabulary", "adapters", "reference_engine", "workloads", "checkpoints", "harness", "tests")
LEFT_OUT = ("BitOr", "_Is", "Variable", "Decorator")
CHECKS = {"check_integrity", "check_held", "check", "check_entries"}
SEED = int(os.environ.get("HITPARITY_MUTANTS_SEED", "7"))
MEMORY = 12 << 30  # bytes of addresses for a mutant that never stops to allocate
CAUGHT, SURVIVED, SAME_AS = "caught", "survived", "equivalent"


@dataclass(frozen=True, slots=True)
class Part:
    """Sources that are mutated together and the tests that should notice (globs)."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        """What the share is reported for."""
        return self.name.split(":")[0]


LAWS = "reference_engine/laws"
OF_LAWS = ("tests/laws/test_*.py",)
OF_ADAPTERS = ("tests/adapters/test_*_decode.py", "tests/adapters/test_*_law*.py", "tests/adapters/test_[hlosv]*.py")
PARTS = (
    Part("ledger:vocabulary", ("vocabulary/ledger.py",), ("tests/vocabulary/test_ledger.py",)),
    Part("ledger:judge", ("harness/judge.py",), ("tests/harness/test_judge.py",)),
    Part("laws:vllm", (f"{LAWS}/vllm/*.py",), OF_LAWS),
    Part("laws:sglang", (f"{LAWS}/sglang/*.py",), OF_LAWS),
    Part("laws:llama.cpp", (f"{LAWS}/llama_cpp/*.py",), OF_LAWS),
    Part("laws:others", (f"{LAWS}/tensorrt_llm/*.py", f"{LAWS}/deepinfer/*.py"), OF_LAWS),
    Part("laws:parts", (f"{LAWS}/parts/*.py",), OF_LAWS),
    Part(
        "adapters:readings",
        ("adapters/*/transcript.py", "adapters/*/probe_log.py", "adapters/*/server_log.py", "adapters/*/completion.py"),
        OF_ADAPTERS,
    ),
    Part(
        "adapters:laws",
        ("adapters/vllm/law.py", "adapters/llama_cpp/law.py", "adapters/sglang/facts.py", "adapters/*/options.py"),
        OF_ADAPTERS,
    ),
    Part("adapters:http", ("adapters/http.py",), OF_ADAPTERS),
)
SAME: dict[str, str] = {
    "reference_engine/laws/sglang/law.py ReplaceAndWithOr#0: if whole and not config.plain:": (
        "read in whole pages, and never for full attention alone"
    ),
    "reference_engine/laws/vllm/tables.py ReplaceComparisonOperator_Lt_NotEq#0: if self._retired < stop:": (
        "what is retired only grows"
    ),
    "adapters/http.py NumberReplacer#0: self._deadline = 0.0": "every call sets it",
    "adapters/llama_cpp/completion.py NumberReplacer#2: "
    "done_ns, last = timed.events[-1] if timed.events else (0, {})": "without events it is an error",
    "reference_engine/laws/llama_cpp/memory.py NumberReplacer#1: return Snapshot(0, self._length - 1)": (
        "nothing but the length matters"
    ),
    "reference_engine/laws/parts/key_radix.py ReplaceBinaryOperator_Mul_FloorDiv#0: "
    "self._begins = (np.cumsum(sizes) - sizes + 1) * kept": "numpy divides by 0 to 0",
    "harness/judge.py NumberReplacer#1: return self._judge(request, reply, self._known([request])[0])": "one request",
    "harness/judge.py NumberReplacer#1: law.finish(request, ids[:1])": "the last generated token is never kept",
    "reference_engine/laws/vllm/explain.py ReplaceComparisonOperator_Gt_GtE#0: "
    "sound = [(cause, ceiling if ceiling > hit else hit) for cause, ceiling in ceilings]": "either is the hit then",
    "reference_engine/laws/parts/keyed_blocks.py ReplaceTrueWithFalse#0: "
    "for block, entry in zip(blocks.tolist(), entries.tolist(), strict=True):": "an entry of each block",
    "reference_engine/laws/parts/stretches.py ReplaceComparisonOperator_Lt_NotEq#0: "
    "return self._lengths[request] == length and self._begins[request] < self._end(request)": "begins are never behind",
    "reference_engine/laws/sglang/law.py ReplaceComparisonOperator_Gt_NotEq#0: if length > 0:": "never below 0",
    "reference_engine/laws/sglang/config.py ReplaceComparisonOperator_NotEq_Gt#0: "
    'if value == "no_buffer" and page != 1:': "a page has 1 token at least",
    "adapters/http.py NumberReplacer#0: "
    "time.sleep(max(0, request.not_before_ns - time.monotonic_ns()) / 1e9)": "a nanosecond more",
    "adapters/http.py NumberReplacer#2: "
    "time.sleep(max(0, request.not_before_ns - time.monotonic_ns()) / 1e9)": "a millionth of the wait less",
    "reference_engine/laws/deepinfer/law.py ReplaceComparisonOperator_Eq_GtE#0: "
    "and common_prefix(ids, lease.ids[: lease.computed_len]) == start": "`ids` has no more than `start` tokens",
    "reference_engine/laws/tensorrt_llm/v1.py NumberReplacer#3: ceilings[-1] = (Cause.DISABLED, 0)": (
        "-1 in place of 0, and a ceiling below 0 is 0"
    ),
    "reference_engine/laws/tensorrt_llm/v1.py ReplaceFalseWithTrue#0: cyclic_windows: bool = False,": (
        "a default, and its one caller names it"
    ),
    "reference_engine/laws/tensorrt_llm/v2_tree.py ReplaceComparisonOperator_Eq_GtE#0: "
    "path.append(next(c for tokens, c in parts if tokens == most))": "`most` is the largest of them",
    "adapters/llama_cpp/completion.py NumberReplacer#0: "
    "done_ns, last = timed.events[-1] if timed.events else (0, {})": "the time of an empty stream, which is refused",
    "reference_engine/laws/vllm/block_size.py NumberReplacer#0: "
    '"vllm-ascend@0.26": _Release(rule=Rule.KEYS_ONLY, kernel_block=128),': "a keys-only rule has its own 128",
    "reference_engine/laws/vllm/switches.py ReplaceFalseWithTrue#0: wide_blocks_advance: bool = False": (
        "nothing reads it"
    ),
    "reference_engine/laws/vllm/tables.py ReplaceComparisonOperator_Eq_LtE#0: mask |= (places + 1) % per == 0": (
        "a remainder is never below 0"
    ),
    "reference_engine/laws/llama_cpp/memory.py ReplaceUnaryOperator_USub_Invert#0: EMPTY = -1": (
        "a mark that is no position"
    ),
    "reference_engine/laws/llama_cpp/chunk_shift.py ReplaceBinaryOperator_Add_LShift#0: "
    "for start in np.flatnonzero(held[source : len(held) - least + 1] == wanted[0]) + source:": (
        "looks on where less than a chunk is left"
    ),
    "reference_engine/laws/sglang/config.py NumberReplacer#0: limit = None "
    'if options.get("max_total_tokens") is None else positive(options, "max_total_tokens", 1)': (
        "a default, and the option is there"
    ),
    "reference_engine/laws/llama_cpp/in_process.py NumberReplacer#0: "
    "return WindowMemory(WindowCells(self.window_cells, self.window, self.n_ubatch), 0)": "of one sequence any number",
    "reference_engine/laws/llama_cpp/in_process.py NumberReplacer#0: self._stored = 0": "a hit of 0 loses nothing",
    "reference_engine/laws/llama_cpp/in_process.py NumberReplacer#1: self._stored = 0": "no length is below 0",
    "reference_engine/laws/llama_cpp/memory.py NumberReplacer#0: EMPTY = -1": "a mark that is no position",
    "reference_engine/laws/llama_cpp/memory.py NumberReplacer#1: self.remove(owner, 0, newest + 1)": (
        "no position is below 0"
    ),
    "reference_engine/laws/llama_cpp/memory.py ReplaceComparisonOperator_NotEq_Gt#0: "
    "used = int(np.count_nonzero(self._owner != EMPTY))": "the mark is the least of all",
    "reference_engine/laws/llama_cpp/memory.py ReplaceComparisonOperator_NotEq_Gt#0: if owner != EMPTY": (
        "the mark is the least of all"
    ),
    "reference_engine/laws/llama_cpp/memory.py ReplaceComparisonOperator_NotEq_Gt#1: if owner != EMPTY:": (
        "the mark is the least of all"
    ),
    "reference_engine/laws/llama_cpp/memory.py ReplaceComparisonOperator_Eq_LtE#0: free = self._owner == EMPTY": (
        "the mark is the least of all"
    ),
    "reference_engine/laws/llama_cpp/places.py ReplaceComparisonOperator_Gt_GtE#0: if first > self.first:": (
        "gives nothing back"
    ),
    "reference_engine/laws/llama_cpp/places.py ReplaceComparisonOperator_Gt_GtE#0: if end > self.end:": (
        "takes nothing"
    ),
    "reference_engine/laws/llama_cpp/places.py ReplaceComparisonOperator_Lt_NotEq#0: if len(found) < count:": (
        "no more than `count` are taken"
    ),
    "reference_engine/laws/llama_cpp/places.py ReplaceTrueWithFalse#0: "
    "Room(group, next(size for size, kind in zip(sizes, kinds, strict=True) if at in kind))": "three of each",
    "reference_engine/laws/llama_cpp/places.py ReplaceTrueWithFalse#0: "
    "sizes = [own + (pool.size or 0) for own, pool in zip(self._own, self._pools, strict=True)]": "three of each",
    "reference_engine/laws/llama_cpp/slots.py NumberReplacer#0: "
    "return slot.last_used is not None, slot.last_used or 0, -slot.number": "compared among the never used only",
    "reference_engine/laws/llama_cpp/slots.py NumberReplacer#1: "
    "return slot.last_used is not None, slot.last_used or 0, -slot.number": "compared among the never used only",
    "reference_engine/laws/llama_cpp/server.py NumberReplacer#0: "
    "copied_window_cells=own * window + (stored.window_cells if window else 0),": "without windows no layer has it",
    "reference_engine/laws/vllm/find.py ReplaceComparisonOperator_Eq_GtE#0: "
    "tail = reach.tail_key if stop == reach.stop else None": "`stop` is no more",
    "reference_engine/laws/vllm/find.py ReplaceComparisonOperator_Gt_NotEq#0: "
    "return Reach(length, 0, stop, tail if stop > run else None)": "with a tail, `stop` is no less than `run`",
    "reference_engine/laws/vllm/plan.py ReplaceFalseWithTrue#0: return common, False": (
        "blocks of one group have no unit inside them"
    ),
    "reference_engine/laws/vllm/plan.py ReplaceTrueWithFalse#0: "
    "len({b for g, b in zip(groups, blocks, strict=True) if g.kind is Kind.FULL}) > 1": "one block of each group",
    "reference_engine/laws/vllm/law.py ReplaceBinaryOperator_Sub_Add#0: "
    "lease.ids = np.concatenate([lease.ids, np.empty(need - len(lease.ids), np.int32)])": "room that nothing uses",
    "reference_engine/laws/vllm/law.py ReplaceFalseWithTrue#0: return Looked(ids, held.space, length, None, 0, (), "
    "False, {kind.text: 0 for kind in plan.kinds}, 0)": "read only where there was a look-up",
    "adapters/http.py NumberReplacer#1: self._deadline = 0.0": "every exchange sets its own",
    "adapters/sglang/transcript.py NumberReplacer#1: last_ns = 0": "the time of an empty stream, which is refused",
    "adapters/llama_cpp/server_log.py NumberReplacer#0: WAIT_S = 2.0": "how long a line that never comes is waited for",
}
SPEED: dict[str, str] = {
    "free_queue.py JOINED = 4096": "NumberReplacer#0 NumberReplacer#1",
    "free_queue.py if self._entries > 4 * self.free + JOINED:": (
        "Gt_Eq Gt_NotEq Gt_Lt Gt_LtE Gt_GtE AddNot#0 NumberReplacer#0 NumberReplacer#1 Mul_Add Mul_Sub Mul_Pow "
        "Mul_LShift Mul_RShift Mul_BitAnd Mul_BitXor Add_Sub Add_Mul Add_Div Add_FloorDiv Add_Mod Add_LShift "
        "Add_RShift Add_BitAnd Add_BitXor"
    ),
    "free_queue.py if self.held == 0 and self.num_blocks is not None:  # so all of them are free: no need to look": (
        "Eq_Lt Eq_LtE NumberReplacer#1"
    ),
    "free_queue.py if self.held == 0:  # so these were all the references there are": "Eq_Lt Eq_LtE NumberReplacer#1",
    "free_queue.py if len(run) > missing:": "Gt_GtE Gt_NotEq",
    "free_queue.py if runs[0][1] == self._joined:": "Eq_NotEq Eq_Lt Eq_LtE Eq_Gt Eq_GtE AddNot#0",
    "free_queue.py while self._runs and size < JOINED:": "Lt_LtE Lt_NotEq Lt_Eq Lt_Gt Lt_GtE",
    "chained.py wider = np.zeros(max(2 * len(table), size), table.dtype)": (
        "NumberReplacer#0 NumberReplacer#1 Mul_Add Mul_Sub Mul_RShift Mul_BitAnd Mul_BitXor"
    ),
    "chained.py self._computed = longer(self._computed, int(blocks.max()) + 1)": "NumberReplacer#0",
    "chained.py table = self._firsts[namespace] = longer(table, int(blocks.max()) + 1)": "NumberReplacer#0",
    "stretches.py self._users = longer(self._users, int(blocks.max()) + 1)": "NumberReplacer#0",
    "chained.py if block % unit == 0 and not lookahead:": "Eq_Lt NumberReplacer#1",
    "page_radix.py self._clock = 0": "NumberReplacer#0 NumberReplacer#1",
    "page_radix.py self._clock += 1": "NumberReplacer#0",
}
"""Lines of `laws/parts` that only decide when or by which of two ways something is done; operators of the mutants."""
for _line, _operators in SPEED.items():
    _file, _, _text = _line.partition(" ")
    for _operator in _operators.split():
        _kind = "Binary" if _operator.startswith(("Mul", "Add_")) else "Comparison"
        _name = _operator if "#" in _operator else f"Replace{_kind}Operator_{_operator}#0"
        SAME[f"reference_engine/laws/parts/{_file} {_name}: {_text}"] = "when or in which of two ways, not what"
SAME |= {
    "reference_engine/laws/parts/free_queue.py ReplaceComparisonOperator_Eq_LtE#0: freed: Slots = blocks[marks == 0]": (
        "a count of references is never below 0"
    ),
    "reference_engine/laws/parts/chained.py ReplaceComparisonOperator_Eq_LtE#0: "
    "if block % unit == 0 and not lookahead:": "a remainder is never below 0",
    "reference_engine/laws/sglang/insertion.py ReplaceComparisonOperator_Eq_LtE#0: "
    "if not holder.state_locks and len(holder.children) == 1:": "what is above the tail has a child",
    "reference_engine/laws/sglang/held.py ReplaceUnaryOperator_USub_UAdd#0: return (wide[:-1] << 32) | wide[1:]": (
        "the first token in place of each pair's own, which behind one prefix is the same for all"
    ),
    "reference_engine/laws/sglang/law.py NumberReplacer#1: "
    "def _free_window(self, held: Held, until: int, *, interval: int = 1) -> None:": "what is freed then is nothing",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the operator's `occurrence`-th place in a file; `text` is the line, `nth` counts those of one text."""

    file: str
    line: int
    operator: str
    occurrence: int
    text: str
    nth: int

    def __str__(self) -> str:
        return f"{self.file} {self.operator}#{self.nth}: {self.text}"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The tests without a fault: seconds of each, and which execute a line of a file ("": none, while collecting)."""

    seconds: dict[str, float]
    executed: dict[str, dict[int, list[str]]]
    modules: list[str]

    def chosen(self, mutant: Mutant) -> dict[str, float]:
        """The tests that should notice it, in order, with their seconds."""
        lines = self.executed.get(mutant.file, {})
        of_line = {test for line in _statement(mutant.file, mutant.line) for test in lines.get(line, ()) if test}
        of_file = {test for tests in lines.values() for test in tests}
        asked = of_line if _functions(mutant.file, mutant.line) else set(self.seconds)
        return {test: self.seconds[test] for test in sorted(asked, key=lambda t: (t not in of_file, self.seconds[t]))}


@cache
def _tree(file: str) -> list[ast.stmt]:
    return [node for node in ast.walk(ast.parse((ROOT / file).read_bytes())) if isinstance(node, ast.stmt)]


def _functions(file: str, line: int) -> list[str]:
    """In whose bodies it stands: what is in none runs when the file is imported, whichever test imports it first."""
    functions = (node for node in _tree(file) if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if node.body[0].lineno <= line <= (node.end_lineno or line)]


def _statement(file: str, line: int) -> range:
    """The lines of the innermost statement there; of a compound one its head."""
    node = max((n for n in _tree(file) if n.lineno <= line <= (n.end_lineno or line)), key=lambda n: n.lineno)
    body = getattr(node, "body", None)
    return range(node.lineno, max(line, body[0].lineno - 1 if body else node.end_lineno or line) + 1)


def measure() -> list[dict[str, object]]:
    """One row per package; ModuleNotFoundError where cosmic-ray or coverage.py is missing."""
    for needed in ("cosmic_ray", "coverage"):
        importlib.import_module(needed)
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
            "equivalent": len(of[SAME_AS]),
        }
        for package, of in found.items()
    ]


def _verdicts(copy: Path, part: Part) -> Iterator[tuple[Mutant, str]]:
    """The part's mutants with what came of them; those for which no time is left are not drawn."""
    log = Path(os.environ.get("HITPARITY_MUTANTS_LOG", os.devnull))
    known = dict(line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()) if log.is_file() else {}
    stop = time.monotonic() + float(os.environ.get("HITPARITY_MUTANTS_SECONDS", "inf"))
    for mutant in _drawn(part, int(os.environ.get("HITPARITY_MUTANTS", "60"))):
        verdict = SAME_AS if str(mutant) in SAME else known.get(str(mutant))
        if verdict is None and time.monotonic() < stop:
            verdict = CAUGHT if _caught(copy, mutant, _baseline(copy, part.tests)) else SURVIVED
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{mutant}\t{verdict}\n")
        if verdict is not None:
            yield mutant, verdict


def _drawn(part: Part, size: int) -> list[Mutant]:
    """A sample that depends on the sources and the seed only; a smaller one is the larger one's beginning."""
    rng = random.Random(SEED)
    files = [path for pattern in part.sources for path in sorted(ROOT.glob(pattern))]
    places = [place for path in files for place in _places(path)]
    rng.shuffle(places)
    chosen = [rng.choice(place) for place in places]
    possible = (
        mutant
        for mutant in chosen
        if not CHECKS.intersection(_functions(mutant.file, mutant.line)) and _code(mutant) is not None
    )
    return list(itertools.islice(possible, size))


def _places(path: Path) -> Iterator[list[Mutant]]:
    """The mutants of a file, those of one place and kind together."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    lines = path.read_text(encoding="utf-8").splitlines()
    nodes = list(ast_nodes(get_ast_from_path(path)))
    file = str(path.relative_to(ROOT))
    places: dict[tuple[object, str], list[Mutant]] = defaultdict(list)
    for name in operator_names():
        if any(part in name for part in LEFT_OUT):
            continue
        operator = get_operator(name)()
        found = (start for node in nodes for start, _ in operator.mutation_positions(node))
        before = Counter[str]()
        for occurrence, start in enumerate(found):
            kind = name.split("_")[0]
            text = lines[start[0] - 1].strip()
            if not text.startswith("@"):
                mutant = Mutant(file, start[0], name.removeprefix("core/"), occurrence, text, before[text])
                places[start, kind].append(mutant)
            before[text] += 1
    yield from (places[key] for key in sorted(places))


def _code(mutant: Mutant) -> str | None:
    """The file with the fault; None where cosmic-ray fails: 8.7 cannot replace an exception's dotted name."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    try:
        code: str | None = mutate_code(source, get_operator("core/" + mutant.operator)(), mutant.occurrence)
    except AttributeError:
        return None
    return code


def _caught(copy: Path, mutant: Mutant, baseline: Baseline) -> bool:
    """Put the fault into the copy, run the tests that execute it, take it out again; True if one fails or hangs."""
    chosen, code = baseline.chosen(mutant), _code(mutant)
    assert code is not None
    (copy / mutant.file).write_text(code, encoding="utf-8")
    try:
        child = multiprocessing.get_context("fork").Process(target=_judge, args=(copy, chosen))
        child.start()
        child.join(60 + 4 * sum(chosen.values()))
        if child.is_alive():
            child.kill()
            child.join()
        return child.exitcode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    finally:
        shutil.copy2(ROOT / mutant.file, copy / mutant.file)  # with its time, by which the compiled one is taken again


@cache
def _baseline(copy: Path, tests: tuple[str, ...]) -> Baseline:
    """Run the tests on the sources as they are; RuntimeError where one fails. Imports what they import."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_record, args=(copy, tests, theirs))
    child.start()
    theirs.close()
    with suppress(EOFError):
        baseline: Baseline = ours.recv()
        child.join()
        for name in baseline.modules:
            with suppress(ImportError):
                importlib.import_module(name)
        return baseline
    raise RuntimeError(f"the tests fail without a mutant; run pytest {' '.join(tests)}")


class _Recorder:
    """pytest plug-in: which test takes how long and executes what."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage, self.seconds = coverage, dict[str, float]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.coverage.switch_context(item.nodeid)
        begin = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.monotonic() - begin
            self.coverage.switch_context("")


class _Chooser:
    """pytest plug-in: only the tests given, in their order, each with a time limit; Hypothesis without shrinking."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.order = seconds, {test: at for at, test in enumerate(seconds)}

    def pytest_configure(self) -> None:
        settings.register_profile("mutants", deadline=None, database=None, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self.order), key=lambda one: self.order[one.nodeid])
        for item in items:
            # Ends the process: an exception would be an example for Hypothesis to try again, without a limit.
            item.add_marker(pytest.mark.timeout(5 + 4 * self.seconds[item.nodeid], method="thread"))


def _record(copy: Path, tests: tuple[str, ...], to: Connection) -> None:
    """In the child of the baseline."""
    from coverage import Coverage

    coverage = Coverage(
        data_file=None, config_file=False, include=[str(copy / one) for part in PARTS for one in part.sources]
    )
    recorder = _Recorder(coverage)
    sys.dont_write_bytecode = False  # compiled once for all mutants
    _enter(copy)
    coverage.start()
    code = _pytest(list(dict.fromkeys(str(path) for one in tests for path in sorted(copy.glob(one)))), recorder)
    coverage.stop()
    if code == pytest.ExitCode.OK:
        data = coverage.get_data()
        files = {str(Path(file).relative_to(copy)): file for file in data.measured_files()}
        executed = {name: data.contexts_by_lineno(file) for name, file in files.items()}
        modules = [
            name for name, module in sys.modules.items() if "site-packages" in str(getattr(module, "__file__", ""))
        ]
        to.send(Baseline(recorder.seconds, executed, modules))
    to.close()
    os._exit(int(code))


def _judge(copy: Path, chosen: dict[str, float]) -> None:
    """In the child of a mutant."""
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    _enter(copy)
    os._exit(
        int(_pytest(list(dict.fromkeys(test.split("::")[0] for test in chosen)), _Chooser(chosen)) if chosen else 0)
    )


def _enter(copy: Path) -> None:
    """The copy's own modules instead of those already imported."""
    for name in [name for name in sys.modules if name.split(".")[0] in TOPS]:
        del sys.modules[name]
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ.pop("CI", None)


def _pytest(files: list[str], plugin: object) -> int:
    """pytest's exit code; nothing printed."""
    off = [word for name in ("cacheprovider", "faulthandler", "xdist", "anyio") for word in ("-p", f"no:{name}")]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return pytest.main(["-x", "-q", *off, "--hypothesis-seed=0", "-m", "not live", *files], plugins=[plugin])
