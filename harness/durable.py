"""Writing what must not be lost: a failed write names the file and the remedy, a manifest is replaced whole or not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from vocabulary.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel


class writable:  # noqa: N801  (reads as a statement: with writable(path): ...)
    """Turns a failed write into an error that names the file and the remedy."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise UsageError(
                f"{self._path}: cannot be written: {error.strerror or error}; what was measured so far is kept. "
                f"Free space or choose another folder with --results DIR, then run again with --resume"
            ) from None


def write_manifest(path: Path, record: BaseModel) -> None:
    """As `write_json`."""
    write_json(path, record.model_dump(mode="json", by_alias=True))


def write_json(path: Path, record: object) -> None:
    """Replace a JSON file so that a reader sees the old or the new one, never half of either."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writable(path):
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(record, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force to the disk which files a folder holds."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
