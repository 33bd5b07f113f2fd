"""Where hitparity keeps what it builds once: model folders, engine environments, wheels."""

from __future__ import annotations

import os
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
