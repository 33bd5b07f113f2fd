"""A file of JSON lines that an engine's probe is still writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vocabulary.errors import EngineFailed


class GrowingJsonLines:
    """Gives each whole line once. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """Rows written since the last call; a line that is still being written comes next time.

        EngineFailed where a whole line is no object: something else writes into the file.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [self._row(line) for line in whole.splitlines()]

    def _row(self, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise EngineFailed(f"{self.path}: the engine's probe wrote something that is no object: {line[:200]!r}")
        return row
