"""Reads the lines that `plugins/hitparity_probe.py` writes, as prefill steps per request."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from adapters.growing_file import GrowingJsonLines
from vocabulary.engine import Span


class ProbeLog:
    """The growing file of one server; read on by whoever asks for a request's steps. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GrowingJsonLines(path)
        self._steps: defaultdict[str, list[Span]] = defaultdict(list)

    def take(self, rid: str) -> tuple[Span, ...]:
        """Prefill steps of a finished request in order, as spans of positions, and forget them; empty if none."""
        for row in self._file.new():
            if row["first"] is not None:
                self._steps[row["rid"]].append((row["first"], row["last"] + 1))
        return tuple(self._steps.pop(rid, ()))
