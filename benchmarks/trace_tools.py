"""Other simulators of prefix caches, each in an environment of its own below the cache folder."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from vocabulary.cache import cache_dir, exclusive
from vocabulary.errors import EngineUnavailable

TOOLS: dict[str, tuple[str, ...]] = {
    "kvcache-simulator": ("kvcache-simulator==0.1.3",),
    "llmtrafficlens": ("llmtrafficlens==0.13.4",),
    "kvlint": ("kvlint==0.1.1", "pydantic"),
    "prefixlens": ("prefixlens==0.1.0",),
}
"""What is installed for each, without what it depends on: kvlint's cache model needs pydantic alone."""
SCRIPTS = Path(__file__).parent / "in_tools"


def folder(tool: str) -> Path:
    """The tool's environment, made on first use (pip, from the package index); EngineUnavailable where that fails."""
    wanted = TOOLS[tool]
    path = cache_dir() / "benchmarks" / wanted[0].replace("==", "-")
    with exclusive(path.with_suffix(".lock"), lambda text: print(text, file=sys.stderr)):
        if not (path / "complete").is_file():
            venv.create(path, with_pip=True, clear=True)
            pip = [str(path / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
            for asked in (("--no-deps", wanted[0]), wanted[1:]):
                if asked and subprocess.run([*pip, *asked], check=False).returncode:
                    raise EngineUnavailable(
                        f"pip could not install {' '.join(asked)} (above); it needs a package index"
                    )
            (path / "complete").touch()
    return path


def hits(tool: str, prompts: Path, block: int) -> list[int]:
    """Tokens hit by each prompt of a file (JSON lists of IDs, a line each), by the tool's own unbounded cache."""
    script = SCRIPTS / f"{tool}_hits.py"
    done = subprocess.run(
        [folder(tool) / "bin" / "python", script, prompts, str(block)], capture_output=True, text=True, check=True
    )
    found: list[int] = json.loads(done.stdout)
    return found


def kvcache_simulator(trace: Path, out: Path, *, block: int, policies: str = "lru") -> Sequence[str]:
    """Its command line for a trace in Mooncake's format."""
    program = folder("kvcache-simulator") / "bin" / "kvcache-simulator"
    options = ["--model", "glm-5.2", "--block-size", str(block), "--policies", policies, "--no-progress"]
    return [str(program), "run", "--trace", str(trace), *options, "--format", "json", "--output", str(out)]


def llmtrafficlens(trace: Path, out: Path) -> Sequence[str]:
    """Its command line for a trace in Mooncake's format; writes `out`.json."""
    return [
        str(folder("llmtrafficlens") / "bin" / "llmtrafficlens"),
        *("profile", str(trace), "--format", "mooncake", "-o", str(out)),
    ]
