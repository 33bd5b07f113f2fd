"""The steps that fill one environment: venv, source builds, pip.

Assumption (pip 22 to 26): `--no-deps -r FILE` installs exactly the lines of FILE.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adapters.process import log_tail
from adapters.requirements import Requirements, cpu_flags
from vocabulary.cache import cache_dir
from vocabulary.errors import EngineUnavailable

PROGRESS_EVERY_S = 10.0
Progress = Callable[[str], None]


def build(requirements: Requirements, folder: Path, progress: Progress, lock: int, below: Sequence[Path] = ()) -> None:
    """Build into `folder`, which must not exist; `lock` is a descriptor that pip inherits.

    `below`: the environments this one stands on, the nearest first; its own packages come before theirs.
    Raises EngineUnavailable naming the failed step, with the end of the log.
    """
    recipe, steps = requirements.recipe, _Steps(requirements, folder, progress, lock)
    base = base_python(requirements)
    if recipe.source_builds and recipe.cmake_args and not _compiler():
        raise EngineUnavailable(
            f"{requirements.engine}: {', '.join(recipe.source_builds)} is built from source and needs a C++ compiler "
            f"(none of $CXX, c++, g++, clang++ was found); install one (Debian: apt install g++) and try again"
        )
    progress(f"{requirements.engine} {requirements.version} ({requirements.device}): building {folder}")
    folder.mkdir(parents=True)
    steps.run("creating the virtual environment", [base, "-m", "venv", folder])
    if recipe.build_with:
        steps.pip("installing what the build needs", ["install", *recipe.build_with])
        _stand_on(folder, below)
    wheels = [_wheel(steps, requirements.pin_of(name)) for name in recipe.source_builds]
    rest = [pin for pin in requirements.pins if pin not in {requirements.pin_of(name) for name in recipe.source_builds}]
    resolved = folder / "requirements.txt"
    resolved.write_text("".join(f"{line}\n" for line in [*rest, *map(str, wheels)]), encoding="utf-8")
    how: list[str | Path] = ["--no-deps"] if recipe.complete else []
    if recipe.prune:
        how.append("--no-compile")  # of thousands of files few are imported, and Python keeps what it compiled
    steps.pip(
        "installing", ["install", *how, "-r", resolved], total=len(requirements.pins) if recipe.complete else None
    )
    for pattern in recipe.prune:
        for path in _site_packages(folder).rglob(pattern):
            path.unlink()
    _stand_on(folder, below)


def _stand_on(folder: Path, below: Sequence[Path]) -> None:
    """Packages that `folder` does not have itself are found in the environments below."""
    if below:
        lines = "".join(f"{_site_packages(each)}\n" for each in below)
        (_site_packages(folder) / "on_top_of.pth").write_text(lines, encoding="utf-8")


def _site_packages(folder: Path) -> Path:
    return next((folder / "lib").glob("python3.*")) / "site-packages"


def base_python(requirements: Requirements) -> str:
    """The running interpreter where its version fits, else one from PATH."""
    wanted = requirements.python
    if wanted == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    if found := shutil.which(f"python{wanted}"):
        return found
    raise EngineUnavailable(
        f"{requirements.engine} {requirements.version} ({requirements.device}) is pinned for Python {wanted}; this is "
        f"{sys.version.split()[0]} and no python{wanted} is on PATH. Install it, or name an existing environment with "
        f'python = "..."'
    )


class _Steps:
    """Commands of one build: output to its log, a line of progress now and then, an error that shows the log's end."""

    def __init__(self, requirements: Requirements, folder: Path, progress: Progress, lock: int) -> None:
        self.requirements, self.folder, self.progress, self.lock = requirements, folder, progress, lock
        self.log = folder / "build.log"

    def pip(
        self,
        what: str,
        arguments: Sequence[str | Path],
        *,
        total: int | None = None,
        environment: Mapping[str, str] = {},
    ) -> None:
        python = str(self.folder / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        self.run(what, [*pip, *arguments], total=total, environment=environment)

    def run(
        self, what: str, command: Sequence[str | Path], *, total: int | None = None, environment: Mapping[str, str] = {}
    ) -> None:
        name, begin = self.requirements.engine, time.monotonic()
        self.progress(f"{name}: {what}")
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                pass_fds=(self.lock,),
            )
        try:
            while True:
                try:
                    child.wait(PROGRESS_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    found = f" {self._collected()} of {total} packages" if total else ""
                    self.progress(f"{name}: {what}{found}, {time.monotonic() - begin:.0f} s")
        except BaseException:
            child.kill()
            child.wait()
            raise
        if child.returncode:
            raise EngineUnavailable(
                f"{name}: {what} failed with status {child.returncode}. Log: {self.log}\n{log_tail(self.log)}"
            )

    def _collected(self) -> int:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return sum(line.startswith(("Collecting ", "Processing ")) for line in lines)


def _wheel(steps: _Steps, pin: str) -> Path:
    """The wheel of a source build, from the wheel cache or built into it."""
    recipe = steps.requirements.recipe
    variables = {"CMAKE_ARGS": recipe.cmake_args, **recipe.build_variables}
    recipe_text = (
        json.dumps([pin, variables, recipe.build_with]) if recipe.build_with else f"{pin}\n{recipe.cmake_args}"
    )
    key = hashlib.sha256(f"{recipe_text}\n{cpu_flags()}".encode()).hexdigest()[:12]
    store = cache_dir() / "wheels" / key
    if not (found := sorted(store.glob("*.whl"))):
        draft = steps.folder / "wheel"
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        steps.pip(
            f"compiling {pin} (minutes)",
            ["wheel", "--no-deps", *(["--no-build-isolation"] if recipe.build_with else []), "-w", draft, pin],
            environment={"CMAKE_BUILD_PARALLEL_LEVEL": jobs, **variables},
        )
        store.mkdir(parents=True, exist_ok=True)
        for wheel in draft.glob("*.whl"):
            # Renaming within the cache is atomic, so a wheel that is there is whole.
            wheel.replace(store / wheel.name)
        found = sorted(store.glob("*.whl"))
    return found[0]


def _compiler() -> str | None:
    names = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name.split()[0]))), None)
