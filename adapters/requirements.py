"""What an engine's environment is made of: the files beside its adapter, and the key they give.

    adapters/<folder>/environment.toml               how to install, one table per device ("cpu") or device and
                                                     version ("cpu-0.23.0")
    adapters/<folder>/requirements-<device>.txt      exact pins of the adapter's default version
    adapters/<folder>/requirements-<device>-<version>.txt   the same for another version

Keys of a device's table, all optional:

    python = "3.11"               only this Python has the wheels
    complete = true               the file lists every package: installed with --no-deps, nothing is resolved
    source_builds = ["name"]      built from source into the wheel cache; the other packages come as wheels
    cmake_args = "-DX=ON"         for those builds
    build_variables = {X = "1"}   environment variables for them
    build_with = ["name==1.0"]    what those builds need, in place of what they ask for
    on_top_of = "engine==version" another environment whose packages these stand on and come before
    prune = ["*.so"]              names of installed files that are deleted again: of the package only its Python runs
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from adapters.registry import ADAPTERS, TOOLS, adapter_for, default_version
from vocabulary.errors import EngineUnavailable, UsageError

ROOT = Path(__file__).parent
LATER_KEYS = ("build_variables", "build_with", "on_top_of", "prune")


class Recipe(BaseModel):
    """One device's table of an `environment.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: str | None = None
    complete: bool = False
    source_builds: tuple[str, ...] = ()
    cmake_args: str = ""
    build_variables: dict[str, str] = {}
    build_with: tuple[str, ...] = ()
    on_top_of: str | None = None
    prune: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Everything that decides the content of one environment."""

    engine: str
    version: str
    device: str
    file: Path
    recipe: Recipe
    base: Requirements | None = None
    """The environment below this one."""

    @property
    def python(self) -> str:
        """Python version as "3.11": the one the recipe demands, else the running one."""
        return self.recipe.python or f"{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def pins(self) -> list[str]:
        """The requirement lines without comments."""
        lines = (line.split("#")[0].strip() for line in self.file.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line]

    def pin_of(self, distribution: str) -> str:
        """The line that pins `distribution`."""
        for pin in self.pins:
            if pin.split("==")[0].strip().lower().replace("_", "-") == distribution:
                return pin
        raise UsageError(f"{self.file}: does not pin {distribution!r}, which environment.toml builds from source")

    @property
    def key(self) -> str:
        """`<engine>-<version>-<device>-<hash>`: equal keys mean interchangeable environments."""
        # Later keys stay out where a recipe does not use them, so that they do not rebuild every environment.
        unused = {key for key in LATER_KEYS if not getattr(self.recipe, key)}
        recipe = self.recipe.model_dump(mode="json", exclude=unused)
        facts: list[Any] = [self.pins, recipe, self.python, sysconfig.get_platform()]
        if self.recipe.source_builds:
            facts.append(cpu_flags())
        if self.base is not None:
            facts.append(self.base.key)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"{self.engine}-{self.version}-{self.device}-{digest[:12]}"


def requirements_for(engine: str, version: str, device: str) -> Requirements | None:
    """The requirements of an engine, or None when it runs in the harness's own interpreter.

    Raises EngineUnavailable when nothing is pinned for this version and device.
    """
    folder = folder_of(engine)
    recipes = folder / "environment.toml"
    if not recipes.is_file():
        return None
    default = version == default_version(engine)
    file = folder / (f"requirements-{device}.txt" if default else f"requirements-{device}-{version}.txt")
    table = tomllib.loads(recipes.read_text(encoding="utf-8"))
    table_name = f"{device}-{version}" if f"{device}-{version}" in table else device
    if table_name not in table or not file.is_file():
        pinned = sorted(path.stem.removeprefix("requirements-") for path in folder.glob("requirements-*.txt"))
        raise EngineUnavailable(
            f"{engine}: no pinned requirements for version {version} on {device} (there are: {', '.join(pinned)}). "
            f'Name an existing environment with python = "...", or add {file.name} beside its adapter'
        )
    try:
        recipe = Recipe.model_validate(table[table_name])
    except ValidationError as error:
        raise UsageError(f"{recipes}: [{table_name}]: {error}") from None
    below = recipe.on_top_of and recipe.on_top_of.split("==")
    return Requirements(
        engine=engine,
        version=version,
        device=device,
        file=file,
        recipe=recipe,
        base=requirements_for(below[0], below[1], device) if below else None,
    )


def folder_of(engine: str) -> Path:
    """The folder of an adapter or a tool; UsageError for a name that does not exist."""
    if engine in TOOLS:
        return ROOT / TOOLS[engine][0]
    if engine not in ADAPTERS:
        adapter_for(engine)  # raises, naming the nearest known engine
    return ROOT / ADAPTERS[engine].split(".")[1]


def cpu_flags() -> str:
    """A short hash of the CPU's instruction sets: a source build runs only where they are the same."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:12]
