"""Progress of a run on stderr: one line per engine start and per cell; in a terminal, the current request too."""

from __future__ import annotations

from rich.markup import escape
from rich.status import Status

from harness.plan import Cell, Group
from harness.records import CellManifest, RequestRecord
from harness.terminal import error_terminal

MARKS = {"complete": "done", "interrupted": "INTERRUPTED", "failed": "FAILED"}


class ConsoleProgress:
    """Implements `harness.runner.Progress`."""

    def __init__(self) -> None:
        self._console = error_terminal()
        self._status: Status | None = None

    def group(self, group: Group, cells: int) -> None:
        """An engine is about to start."""
        self._update(f"{group.engine_label}: starting on {group.model} for {cells} cell{'s' if cells != 1 else ''}")

    def request(self, cell: Cell, record: RequestRecord) -> None:
        """One request was answered."""
        hit = "?" if record.hit_len is None else record.hit_len
        self._update(
            f"{cell.engine_label} | {cell.workload.name} | {record.label}: {record.prompt_len} tokens, hit {hit}"
        )

    def remark(self, cell: Cell, text: str) -> None:
        """A lasting line about a cell."""
        self.stop()
        self._console.print(
            escape(f"{cell.engine_label} | {cell.model} | {cell.workload.name}: {text}"), soft_wrap=True
        )

    def cell(self, cell: Cell, manifest: CellManifest) -> None:
        """A cell has ended: one lasting line."""
        self.stop()
        line = f"{MARKS[manifest.status]} {cell.engine_label} | {cell.model} | {cell.workload.name}: "
        line += f"{manifest.requests} requests" + (f"; {manifest.why}" if manifest.why else "")
        self._console.print(escape(line), soft_wrap=True)

    def stop(self) -> None:
        """Remove the moving line."""
        if self._status:
            self._status.stop()
            self._status = None

    def _update(self, text: str) -> None:
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(escape(text))
