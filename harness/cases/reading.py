"""Case files and shipped sets to cases; UsageError names file, line, key and the nearest known key."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from harness.cases.format import Case
from harness.experiment import checked
from vocabulary.errors import HitparityError, UsageError

MAX_FILE_BYTES = 256 << 20
MAX_LINE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Placed:
    """A case and where it is written."""

    case: Case
    path: Path
    line: int

    @property
    def where(self) -> str:
        """Such as "vllm-53749.jsonl:3"."""
        return f"{self.path.name}:{self.line}"


def shipped_sets() -> dict[str, tuple[Path, ...]]:
    """Name of every shipped set to its files."""
    folder = Path(str(files("workloads"))) / "cases"
    return {path.name: tuple(sorted(path.glob("*.jsonl"))) for path in sorted(folder.iterdir()) if path.is_dir()}


def find_cases(names: Iterable[str]) -> list[Placed]:
    """Cases of files and of shipped sets, in the order named; a set's single file by its stem, "reports/vllm-53749"."""
    found: list[Placed] = []
    for name in names:
        for path in _paths(name):
            found += read_cases(path)
    return found


def read_cases(path: Path) -> list[Placed]:
    """Every case of one file; blank lines are skipped."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path}: over {MAX_FILE_BYTES >> 20} MiB; split the case file")
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    placed = [Placed(_read_line(line, f"{path}:{n}"), path, n) for n, line in enumerate(lines, 1) if line.strip()]
    if not placed:
        raise UsageError(f"{path}: no case in it; a case is one JSON object on one line (docs/cases.md)")
    seen: dict[str, int] = {}
    for each in placed:
        if (first := seen.setdefault(each.case.id, each.line)) != each.line:
            raise UsageError(f"{path}:{each.line}: the id {each.case.id!r} is that of line {first}; ids are unique")
    return placed


def write_cases(path: Path, cases: Sequence[Case]) -> None:
    """One case a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(case.to_line() + "\n" for case in cases), encoding="utf-8")


def _read_line(line: bytes, where: str) -> Case:
    if len(line) > MAX_LINE_BYTES:
        raise UsageError(f"{where}: over {MAX_LINE_BYTES >> 20} MiB in one line; write prompts as ranges")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, numbers or nesting beyond Python's limits
        raise UsageError(f"{where}: not a JSON object on one line: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{where}: a case is a JSON object, not {type(data).__name__}")
    try:
        case = checked(Case, data, str(data.get("id", "case"))[:200])
    except HitparityError as error:
        raise UsageError(f"{where}: {error}") from None
    for number, request in enumerate(case.requests):
        if request.fork_of is not None and request.fork_of >= number:
            raise UsageError(f"{where}: request {number} forks from request {request.fork_of}, which comes later")
    return case


def _paths(name: str) -> tuple[Path, ...]:
    path = Path(name)
    if path.is_file():
        return (path,)
    if path.is_dir():
        if found := tuple(sorted(path.glob("*.jsonl"))):
            return found
        raise UsageError(f"{name}: no *.jsonl file in this folder")
    sets = shipped_sets()
    if name in sets:
        return sets[name]
    single = {f"{group}/{file.stem}": file for group, paths in sets.items() for file in paths}
    if (stem := name.removesuffix(".jsonl")) in single:
        return (single[stem],)
    near = difflib.get_close_matches(name, [*sets, *single], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"shipped sets: {', '.join(sets)}"
    raise UsageError(f"{name!r} is neither a case file nor a shipped set; {hint}")
