"""One virtual environment per engine and version, below the user's cache folder, built once.

    <cache>/envs/<key>/            the environment (it cannot be renamed, so it is built in place)
    <cache>/envs/<key>/build.log   output of pip
    <cache>/envs/<key>/complete.json   written last and atomically; a folder without it is never used
    <cache>/envs/<key>.lock        held while building, also by pip itself

The key hashes all that decides the content (`adapters.requirements`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adapters.base import EngineSpec
from adapters.pip_build import build
from adapters.requirements import Requirements, requirements_for
from vocabulary.cache import cache_dir, exclusive
from vocabulary.errors import EngineUnavailable, UsageError

MARKER = "complete.json"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One folder below `envs/`."""

    path: Path
    engine: str | None
    """None for a half-built folder, whose marker is missing."""
    version: str | None
    device: str | None

    @property
    def complete(self) -> bool:
        """Whether it may be used."""
        return self.engine is not None

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    def size_bytes(self) -> int:
        """Bytes of its files; links are not followed."""
        return sum(path.lstat().st_size for path in self.path.rglob("*") if not path.is_dir())


def python_for(spec: EngineSpec) -> Path:
    """The interpreter that runs the engine: `spec.python`, else the built environment's, else the harness's own
    for an engine that needs no environment.

    Raises EngineUnavailable when it is missing or does not run, with the command that builds it.
    """
    if spec.python is not None:
        return _checked(spec.python, f'{spec.engine}: python = "{spec.python}"')
    return built_python(spec.engine, spec.version, spec.device)


def built_python(engine: str, version: str, device: str) -> Path:
    """The interpreter of a built environment, or the harness's own for an engine that needs none.

    Raises EngineUnavailable when it is missing or does not run, with the command that builds it.
    """
    requirements = requirements_for(engine, version, device)
    if requirements is None:
        return Path(sys.executable)
    environment = _opened(_home() / requirements.key)
    command = f"hitparity env create {engine} --version {version} --device {device}"
    if not all(_opened(_home() / each.key).complete for each in (requirements, *_below(requirements))):
        raise EngineUnavailable(f"{engine} {version} ({device}) has no environment yet; build it with `{command}`")
    return _checked(environment.python, f"{engine}: {environment.python} (remove and build it again with `{command}`)")


def create(engine: str, version: str, device: str, progress: Progress) -> Environment | None:
    """Build the environment, or find it built; None for an engine that needs none.

    Raises EngineUnavailable with the end of pip's output when the build fails; nothing usable is left then.
    """
    requirements = requirements_for(engine, version, device)
    if requirements is None:
        return None
    folder = _home() / requirements.key
    below = _below(requirements)
    if below:
        create(below[0].engine, below[0].version, device, progress)
    with exclusive(folder.with_name(folder.name + ".lock"), progress) as lock:
        if not _opened(folder).complete:
            shutil.rmtree(folder, ignore_errors=True)
            build(requirements, folder, progress, lock, [_home() / each.key for each in below])
            _mark(folder, {"engine": engine, "version": version, "device": device})
    return _opened(folder)


def environments() -> list[Environment]:
    """All folders below `envs/`, half-built ones included."""
    home = _home()
    return [_opened(path) for path in sorted(home.iterdir()) if path.is_dir()] if home.is_dir() else []


def remove(engine: str, version: str | None, progress: Progress) -> list[Path]:
    """Delete an engine's environments, half-built ones included; UsageError when there is none.

    `version` None: those of every version.
    """
    prefix = f"{engine}-{version}-" if version else f"{engine}-"
    removed = []
    for environment in environments():
        folder = environment.path
        if folder.name.startswith(prefix):
            with exclusive(folder.with_name(folder.name + ".lock"), progress):
                (folder / MARKER).unlink(missing_ok=True)
                shutil.rmtree(folder)
            removed.append(folder)
    if not removed:
        raise UsageError(f"{engine}: no environment{f' of version {version}' if version else ''} below {_home()}")
    return removed


def _below(requirements: Requirements) -> list[Requirements]:
    """The environments that this one stands on, the nearest first."""
    return [] if requirements.base is None else [requirements.base, *_below(requirements.base)]


def _home() -> Path:
    return cache_dir() / "envs"


def _opened(folder: Path) -> Environment:
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return Environment(path=folder, engine=marker["engine"], version=marker["version"], device=marker["device"])
    except (OSError, ValueError, KeyError, TypeError):
        return Environment(path=folder, engine=None, version=None, device=None)


def _mark(folder: Path, content: dict[str, str]) -> None:
    draft = folder / (MARKER + ".draft")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(folder / MARKER)


def _checked(python: Path, what: str) -> Path:
    try:
        subprocess.run([python, "-c", ""], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnavailable(f"{what} does not run: {error}") from None
    return python
