"""The headers of weight files, checked before any engine reads them: counts and lengths must fit the file.

GGUF, versions 2 and 3 (ggml docs/gguf.md; read by gguf 0.19 and llama.cpp b11549):

    magic "GGUF", version u32, tensors u64, keys u64
    key:     name, type u32, value          name, text: length u64, bytes    array: type u32, count u64, values
    tensor:  name, dimensions u32, each u64, type u32, offset u64

safetensors (0.5): length u64, then that many bytes of JSON; each tensor's offsets lie within the rest.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from vocabulary.bounded import parse_json
from vocabulary.errors import UsageError

MAX_ENTRIES = 1 << 20
"""Keys, or tensors; real models have some thousands."""
MAX_NESTING = 4
"""Arrays in arrays."""
MAX_DIMENSIONS = 4
"""GGML_MAX_DIMS"""
MAX_SAFETENSORS_HEADER = 100_000_000
"""As the safetensors library has it."""
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each scalar type of a key."""
TEXT, ARRAY = 8, 9


def check_gguf(path: Path) -> None:
    """UsageError where the header does not fit the file."""
    with path.open("rb") as file:
        reader = _Reader(path, file)
        if (magic := reader.take(4)) != b"GGUF":
            raise reader.broken(f"begins with {magic!r}, not GGUF")
        if (version := reader.number(4)) not in (2, 3):
            raise reader.broken(f"is of version {version}, not 2 or 3")
        tensors, keys = reader.count("tensors"), reader.count("keys")
        for _ in range(keys):
            reader.text()
            reader.value(reader.number(4), MAX_NESTING)
        for _ in range(tensors):
            reader.text()
            if (dimensions := reader.number(4)) > MAX_DIMENSIONS:
                raise reader.broken(f"has a tensor of {dimensions} dimensions")
            reader.skip(8 * dimensions + 4)
            if (offset := reader.number(8)) >= reader.size:
                raise reader.broken(f"has a tensor at {offset}, behind its end")


def check_safetensors(path: Path) -> None:
    """UsageError where the header does not fit the file."""
    with path.open("rb") as file:
        reader = _Reader(path, file)
        if (length := reader.number(8)) > min(MAX_SAFETENSORS_HEADER, reader.left):
            raise reader.broken(f"has a header of {length} bytes")
        header, left = parse_json(reader.take(length), str(path)), reader.left
    if not isinstance(header, dict):
        raise reader.broken("has a header that is no object")
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2 or any(type(each) is not int for each in offsets):
            raise reader.broken(f"has no offsets for tensor {name!r:.80}")
        if not 0 <= offsets[0] <= offsets[1] <= left:
            raise reader.broken(f"has tensor {name!r:.80} outside of its {left} bytes of data")


class _Reader:
    """Reads numbers and skips values, never beyond the end."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self.size = path.stat().st_size
        self._at = 0

    @property
    def left(self) -> int:
        return self.size - self._at

    def broken(self, what: str) -> UsageError:
        return UsageError(f"{self._path}: {what}; it is damaged or made up, get the model again")

    def take(self, length: int) -> bytes:
        self.skip(0, needs=length)
        data = self._file.read(length)
        if len(data) != length:
            raise self.broken("ends early")
        self._at += length
        return data

    def skip(self, length: int, *, needs: int = 0) -> None:
        if length + needs > self.left:
            raise self.broken(f"ends within its header (at byte {self._at}, {length + needs} more are needed)")
        if length:
            self._at += length
            self._file.seek(self._at)

    def number(self, width: int) -> int:
        value: int = struct.unpack("<I" if width == 4 else "<Q", self.take(width))[0]
        return value

    def count(self, what: str) -> int:
        if (count := self.number(8)) > MAX_ENTRIES:
            raise self.broken(f"counts {count} {what}")
        return count

    def text(self) -> None:
        self.skip(self.number(8))

    def value(self, kind: int, nesting: int) -> None:
        if kind in SIZES:
            self.skip(SIZES[kind])
        elif kind == TEXT:
            self.text()
        elif kind == ARRAY and nesting:
            self._array(nesting - 1)
        else:
            raise self.broken(f"has a value of unknown type {kind}" if kind != ARRAY else "nests arrays too deep")

    def _array(self, nesting: int) -> None:
        kind, count = self.number(4), self.number(8)
        if kind in SIZES:
            self.skip(count * SIZES[kind])
            return
        if 8 * count > self.left:  # a text or an array has a length at least
            raise self.broken(f"has an array of {count} values")
        for _ in range(count):
            self.value(kind, nesting)
