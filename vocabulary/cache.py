"""Where hitparity keeps what it builds once: model folders, engine environments, wheels."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder, not created here.

    HITPARITY_CACHE names it; otherwise `hitparity` below $XDG_CACHE_HOME, by default ~/.cache. As the XDG
    base-directory specification asks, a relative or empty $XDG_CACHE_HOME counts as unset.
    """
    if chosen := os.environ.get("HITPARITY_CACHE"):
        return Path(chosen).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "hitparity"


@contextmanager
def exclusive(path: Path, waiting: Callable[[str], None]) -> Iterator[int]:
    """Hold the lock file; gives its descriptor.

    A child that inherits the descriptor keeps the lock if this process is killed, so that an orphaned
    pip and a second build never write into one folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(f"waiting: another process holds {path.name}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
