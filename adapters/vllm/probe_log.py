"""Reads the rows of `probe/hitparity_vllm_probe.py`: the engine's facts, and prefill steps per request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.growing_file import GrowingJsonLines
from vocabulary.engine import Span


@dataclass(frozen=True, slots=True)
class Prefill:
    """What the scheduler did with one prompt."""

    steps: tuple[Span, ...]
    preemptions: int

    @property
    def position_start(self) -> int:
        """First position computed."""
        return self.steps[0][0]


def prefill_of(rows: Iterable[dict[str, Any]], request_id: str) -> Prefill | None:
    """The prefill of one request by the caller's id; None when no row is about it."""
    own = [row for row in rows if row["id"] == request_id or row["id"].startswith(request_id + "-")]
    if not own:
        return None
    return Prefill(tuple((row["start"], row["end"]) for row in own), own[-1]["preemptions"])


class ProbeLog:
    """The growing file of one server. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] | None = None
        """From the scheduler's first row; None until it is there."""
        self._file = GrowingJsonLines(path)
        self._rows: list[dict[str, Any]] = []

    def read(self) -> None:
        """Take in whole lines written since the last call."""
        for row in self._file.new():
            if "facts" in row:
                self.facts = row["facts"]
            else:
                self._rows.append(row)

    def take(self, request_ids: Iterable[str]) -> list[Prefill | None]:
        """Prefills of finished requests, in their order; everything read so far is forgotten."""
        self.read()
        found = [prefill_of(self._rows, request_id) for request_id in request_ids]
        self._rows.clear()
        return found
