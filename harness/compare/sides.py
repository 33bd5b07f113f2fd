"""What is compared: `RUN`, or one engine configuration of it as `RUN:label`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.records import CellManifest, RequestRecord
from harness.store import Run, load_run
from harness.wording import plain
from vocabulary.errors import UsageError

CellKey = tuple[str, str, str]
"""Engine configuration, model, workload."""


@dataclass(frozen=True, slots=True)
class Side:
    """A run, or one engine configuration of it."""

    name: str
    """As it was given."""
    run: Run
    label: str | None
    """The engine configuration; None: all of the run."""

    @property
    def cells(self) -> list[CellManifest]:
        """Its cells that have a manifest, in the order of the run."""
        return [cell for cell in self.run.cells if self.label in (None, cell.engine_label)]

    @property
    def labels(self) -> list[str]:
        """Its engine configurations."""
        return list(dict.fromkeys(cell.engine_label for cell in self.cells))

    def requests(self, cell: CellManifest) -> list[RequestRecord]:
        """The requests of one cell, in the order they were sent."""
        return [request for request in self.run.requests if request.cell == cell.cell]


def read_side(text: str) -> Side:
    """Read `RUN` or `RUN:label`; UsageError where there is no such run or no such configuration in it."""
    if Path(text).is_dir() or ":" not in text:
        return Side(text, load_run(Path(text)), None)
    # A colon may be part of the folder's name or of the label: the longest folder that exists wins.
    places = [at for at, character in enumerate(text) if character == ":" and Path(text[:at]).is_dir()]
    if not places:
        raise UsageError(f"{text}: no such run; give RUN or RUN:label with RUN as DIR/<experiment>/<run>")
    folder, label = Path(text[: places[-1]]), text[places[-1] + 1 :]
    run = load_run(folder)
    side = Side(text, run, label)
    if not side.cells:
        known = ", ".join(dict.fromkeys(plain(cell.engine_label) for cell in run.cells)) or "none"
        raise UsageError(f"{text}: the run has no engine configuration {label!r}; it has {known}")
    return side
