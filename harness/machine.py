"""Facts of the machine a run or benchmark was made on, so that its numbers can be read later."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("adapters", "checkpoints", "harness", "reference_engine", "vocabulary", "workloads")


def machine_facts() -> dict[str, str | int | None]:
    """Processor, cores this process may use, memory, system, Python and clock; None where it cannot be read."""
    return {
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or None,
        "instructions": _instructions(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": sys.version.split()[0],
        "clock_source": _line(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
    }


def hitparity_version() -> str:
    """Version and digest of the sources, as in "0.1.0+5d1c9a60": a checkout changes without its version changing.

    "unknown" in place of the version when run from a folder that was never installed.
    """
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    try:
        installed = version("hitparity")
    except PackageNotFoundError:
        installed = "unknown"
    return f"{installed}+{digest.hexdigest()[:8]}"


def _instructions() -> str | None:
    """The vector instruction sets that decide the speed of matrix products."""
    flags = (_field(Path("/proc/cpuinfo"), "flags") or "").split()
    return " ".join(f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags) or None


def _line(path: Path) -> str | None:
    """What a file of one line says."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _field(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == name), None)
