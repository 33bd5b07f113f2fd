"""Which trace a job reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Where the requests come from."""

    path: Path
    format: str | None = None
    """None: the first line decides."""
    block_len: int | None = None
    """Tokens in a block, for formats that leave it open."""
    skip_malformed: bool = False
    limit: int | None = None
    """Only so many requests."""
    divide: int = 1
    """All lengths are divided by it."""
