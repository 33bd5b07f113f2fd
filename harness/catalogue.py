"""The ready experiment files, shipped beside the workloads."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from vocabulary.errors import UsageError


def catalogue() -> dict[str, Path]:
    """Name to file of every ready experiment."""
    folder = Path(str(files("workloads"))) / "catalogue"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_experiment(text: str) -> Path:
    """A file path, or a name of the catalogue; UsageError names the nearest."""
    path = Path(text)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file() and path.name == text and path.stem in catalogue():
            return catalogue()[path.stem]
        return path
    ready = catalogue()
    if text not in ready:
        near = difflib.get_close_matches(text, ready, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"ready ones: {', '.join(ready)}"
        raise UsageError(f"{text!r} is neither an experiment file nor a ready experiment; {hint}")
    return ready[text]
