"""`hitparity gpu-check`: the reference engine's kernels on a card, in a process of their own.

A process of its own because the Python that holds torch and Triton for the card need not be hitparity's, and because
Triton decides at import whether it interprets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from adapters.environments import built_python
from adapters.registry import default_version
from vocabulary.errors import UsageError

DEVICES = ("cuda", "npu")
ROOT = Path(__file__).parent.parent


def gpu_check(
    device: Annotated[str, typer.Option(help="cuda or npu.")] = "cuda",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the JSON goes.")] = Path("gpu_check.json"),
    python: Annotated[
        Path | None,
        typer.Option(
            help="Python with torch and Triton for the card. Default: hitparity's own; dry run: kernels-cuda's."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="All of it on the CPU, at toy sizes.")] = False,
) -> None:
    """Check the kernels on a card and time them beside its own copy and matmul. Under 3 minutes."""
    if device not in DEVICES:
        raise UsageError(f"gpu-check: unknown device {device!r}; known: {', '.join(DEVICES)}")
    tool = "kernels-cuda"
    chosen = python or (built_python(tool, default_version(tool), "cpu") if dry_run else Path(sys.executable))
    command = [str(chosen), "-m", "reference_engine.gpu_check", "--device", device, "--out", str(out.absolute())]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *(["--dry-run"] if dry_run else [])], env=variables, check=False)
    raise typer.Exit(done.returncode)
