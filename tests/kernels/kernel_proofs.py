"""The environments of the compilers. A missing one skips its proofs, and fails them where CI is set."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from adapters.environments import built_python
from adapters.registry import default_version
from vocabulary.errors import EngineUnavailable

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {
    "interpreter": "kernels-cuda",
    "sm90": "kernels-cuda",
    "ascend": "kernels-ascend",
    "lowered": "kernels-ascend",
}


@dataclass(frozen=True)
class Proof:
    """What one proof printed."""

    status: int
    checks: tuple[Mapping[str, Any], ...]
    said: str

    @property
    def broken(self) -> dict[str, list[str]]:
        """Name of a failed check to its reasons."""
        return {each["name"]: each["broken"] for each in self.checks if each["broken"]}


@cache
def tool_python(name: str) -> Path:
    """The interpreter of a tool's environment."""
    try:
        return built_python(name, default_version(name), "cpu")
    except EngineUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"required in CI: {error}", pytrace=False)
        pytest.skip(str(error))


def run_proof(name: str, *, root: Path = ROOT, only: str | None = None) -> Proof:
    """Run a proof on the sources below `root` (the repository, or a copy with a fault)."""
    command = [str(tool_python(ENVIRONMENT[name])), "-m", f"reference_engine.kernels.proofs.{name}"]
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("TRITON_", "PYTHON"))}
    done = subprocess.run(
        [*command, *(["--only", only] if only else [])],
        cwd=root,
        env=variables | {"PYTHONDONTWRITEBYTECODE": "1", "TRITON_CACHE_DIR": str(ROOT / ".pytest_cache" / "triton")},
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    checks = tuple(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return Proof(done.returncode, checks, done.stderr[-3000:])
