"""The lines a proof prints."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was measured, and which limits were not kept."""

    proof: str
    name: str
    broken: tuple[str, ...]
    """One sentence per limit that was not kept; empty: passed."""
    measured: dict[str, float | int | str] = field(default_factory=dict)
    seconds: float = 0.0


def run_checks(checks: Iterable[tuple[str, Callable[[], Check]]], only: str | None) -> int:
    """Run and print those whose name contains `only`; the exit status. Raises ValueError when there is none."""
    failed = count = 0
    for name, run in checks:
        if only is not None and only not in name:
            continue
        begin = time.perf_counter()
        check = run()
        line = asdict(check) | {"seconds": round(time.perf_counter() - begin, 2)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        failed += bool(check.broken)
        count += 1
    if not count:
        raise ValueError(f"no check whose name contains {only!r}")
    return int(failed > 0)
