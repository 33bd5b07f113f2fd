"""Reading files that somebody else wrote: regular ones only, of bounded size and nesting, and never executed.

Every refusal is a UsageError that names the file. Checkpoints, records and experiment files are read through here.
"""

from __future__ import annotations

import json
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from vocabulary.errors import UsageError

MAX_BYTES = 64 << 20
"""Unless the caller knows better: more than any tokenizer or manifest has."""
MAX_DEPTH = 64
"""Levels of lists and objects; nothing that is read here has more than ten."""
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,254}")
"""One component of a path, and neither hidden nor "..": folders of cells, files that a manifest names."""


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The whole file; UsageError where it is missing, no regular file (a pipe would hang), or over `limit` bytes."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path}: cannot be read: it is no regular file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:
        raise UsageError(f"{path}: over {limit} bytes; it is not what it is taken for")
    return data


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """The whole file as UTF-8; UsageError as `read_bytes`, and where it is not UTF-8."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: cannot be read: it is not UTF-8 ({error.reason} at byte {error.start})") from None


def read_json(path: Path, limit: int = MAX_BYTES) -> Any:
    """The file's JSON value; UsageError where it is none or nested too deep."""
    return parse_json(read_text(path, limit), str(path))


def read_toml(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """The file's TOML table; UsageError where it is none or nested too deep."""
    text = read_text(path, limit)
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and numbers or nesting beyond Python's limits
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    _refuse_depth(found, str(path))
    return found


def parse_json(text: str | bytes, where: str) -> Any:
    """A JSON value, of at most `MAX_DEPTH` levels; UsageError names `where`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, numbers or nesting beyond Python's limits
        raise UsageError(f"{where}: not valid JSON: {error}") from None
    _refuse_depth(found, where)
    return found


def inside(folder: Path, *names: str) -> Path:
    """`folder/names...`, where the names come from a file of somebody else.

    UsageError where one could lead out of the folder: separators, "..", a symbolic link.
    """
    path = folder
    for name in names:
        if not SAFE_NAME.fullmatch(name):
            raise UsageError(f"{folder}: refuses the name {name!r:.80}: it could lead out of this folder")
        path /= name
        if path.is_symlink():
            raise UsageError(f"{path}: is a symbolic link, which is not followed; put the file itself there")
    return path


def _refuse_depth(value: Any, where: str) -> None:
    """Level by level, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [each for each in level if isinstance(each, list | dict)]
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return
    raise UsageError(f"{where}: lists and tables are nested over {MAX_DEPTH} deep")
