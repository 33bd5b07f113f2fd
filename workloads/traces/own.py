"""hitparity's own trace: real or hashed token IDs, each stored once however many prompts begin with them.

    {"format": "hitparity.trace/1", "source": "vllm", "vocab_size": 151936, "hashed": true}
    {"ids": [151644, 872, 198], "output": [9707], "arrival_ns": 0, "session": "a"}
    {"from": [2, 4], "ids": [[100, 140]], "output": [7, 8], "arrival_ns": 1500000000, "namespace": "tenant-1"}

The first line says what the file is. `from` [line, n]: the prompt begins with the first n tokens of that line's prompt
and answer; `ids` follow. IDs are a list, or half-open [start, stop] ranges of consecutive ones. All but
`ids` may be absent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from vocabulary.errors import UsageError
from workloads.traces.base import MalformedRow, Row, TokenIds, TraceReader, text_or_none, whole
from workloads.traces.chain import block_keys

FORMAT = "hitparity.trace/1"
LARGEST_ID = 2**31 - 1
FIND_BLOCK = 64
"""The writer looks for shared beginnings in steps of so many tokens; the shared length itself is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHead:
    """First line of a trace."""

    source: str
    """What it was imported from."""
    vocab_size: int | None = None
    """IDs lie below; None: not known."""
    hashed: bool = False
    """Whether IDs were replaced under a secret key: equal IDs stay equal, and say nothing else."""
    note: str | None = None


class Sequences:
    """Prompts with their answers by line, each kept as what it adds to an earlier one."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int | None, int, TokenIds]] = {}

    def add(self, line: int, base: int | None, shared: int, own: TokenIds) -> None:
        """`own` behind the first `shared` tokens of line `base`."""
        self._kept[line] = (base, shared, own)

    def get(self, line: int, length: int | None = None) -> TokenIds:
        """The first `length` tokens of a line, all where None; MalformedRow where there are not as many."""
        pieces: list[TokenIds] = []
        wanted = length
        at: int | None = line
        while at is not None and wanted != 0:
            if at not in self._kept:
                raise MalformedRow(f"'from' names line {at}, and no request was read there before")
            base, shared, own = self._kept[at]
            have = shared + len(own)
            if wanted is not None and wanted > have:
                raise MalformedRow(f"'from' takes {wanted} tokens of line {at}, which has {have}")
            stop = have if wanted is None else wanted
            if stop > shared:
                pieces.append(own[: stop - shared])
            at, wanted = base, min(stop, shared)
        return np.concatenate(pieces[::-1]) if pieces else np.empty(0, np.int32)


class Own(TraceReader):
    """Reads hitparity's own traces. Memory: every token that is new to the file, 4 bytes each."""

    format = "hitparity"
    chained = True
    usual_block_len = 16

    @property
    def blind_below(self) -> str:
        """Token IDs show everything; only the block form rounds."""
        return (
            f"token IDs: every shared prefix is exact; counted in blocks, it is rounded down to {self.block_len} tokens"
        )

    def restart(self) -> None:
        """Forget all lines."""
        self.head: TraceHead | None = None
        self._sequences = Sequences()

    def decode(self, row: Mapping[str, Any], line: int) -> Sequence[Row]:
        """The head, or one request."""
        if self.head is None:
            if row.get("format") != FORMAT:
                raise UsageError(
                    f"{self.path}:{line}: no {FORMAT} trace: the first line must say so; is it another --format?"
                )
            self.head = TraceHead(
                source=str(row.get("source")),
                vocab_size=None if row.get("vocab_size") is None else whole(row, "vocab_size", least=1),
                hashed=row.get("hashed") is True,
                note=text_or_none(row, "note"),
            )
            return ()
        base, shared = _base(row)
        own = _ids(row, "ids")
        ids = own if base is None else np.concatenate([self._sequences.get(base, shared), own])
        if not len(ids):
            raise MalformedRow("the prompt is empty")
        output = _ids(row, "output") if "output" in row else None
        output_len = len(output) if output is not None else whole(row, "output_len") if "output_len" in row else 0
        made = Row(
            ids=block_keys(ids, self.block_len),
            token_ids=ids,
            output_ids=output,
            arrival_ns=whole(row, "arrival_ns") if "arrival_ns" in row else None,
            input_len=len(ids),
            output_len=output_len,
            session=text_or_none(row, "session"),
            parent=text_or_none(row, "parent"),
            namespace=text_or_none(row, "namespace"),
            lora=text_or_none(row, "lora"),
            hit_len=whole(row, "hit_len") if "hit_len" in row else None,
        )
        answer = own if output is None else np.concatenate([own, output])
        self._sequences.add(line, base, shared, answer)
        return (made,)


class TraceWriter:
    """Writes a trace beside its place and moves it there when closed without an error."""

    def __init__(self, path: Path, head: TraceHead) -> None:
        """UsageError where the place cannot be written to."""
        self.path, self._part = path, path.with_name(f".{path.name}.part")
        try:
            self._file = self._part.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}; choose another file") from None
        self._line = 0
        self._sequences = Sequences()
        self._at: dict[int, int] = {}
        fields = {"source": head.source, "vocab_size": head.vocab_size, "hashed": head.hashed, "note": head.note}
        self._put({"format": FORMAT} | {key: value for key, value in fields.items() if value is not None})

    @property
    def requests(self) -> int:
        """Written so far."""
        return self._line - 1

    def add(
        self,
        ids: TokenIds,
        output_ids: TokenIds | None = None,
        *,
        output_len: int | None = None,
        arrival_ns: int | None = None,
        session: str | None = None,
        parent: str | None = None,
        namespace: str | None = None,
        lora: str | None = None,
        hit_len: int | None = None,
    ) -> int:
        """Write one request; its line number."""
        whole_ids = ids if output_ids is None else np.concatenate([ids, output_ids])
        keys = block_keys(whole_ids, FIND_BLOCK)[: len(whole_ids) // FIND_BLOCK].tolist()
        base, shared = self._longest(ids, keys)
        fields: dict[str, Any] = {
            "from": None if base is None else [base, shared],
            "ids": _spelled(ids[shared:]),
            "output": None if output_ids is None else _spelled(output_ids),
            "output_len": output_len if output_ids is None else None,
            "arrival_ns": arrival_ns,
            "session": session,
            "parent": parent,
            "namespace": namespace,
            "lora": lora,
            "hit_len": hit_len,
        }
        self._put({key: value for key, value in fields.items() if value is not None})
        self._sequences.add(self._line, base, shared, whole_ids[shared:])
        for key in keys:
            self._at.setdefault(key, self._line)
        return self._line

    def _longest(self, ids: TokenIds, keys: list[int]) -> tuple[int | None, int]:
        """The line that the prompt begins like, and for how long."""
        found = None
        for key in keys[: len(ids) // FIND_BLOCK]:
            if key not in self._at:
                break
            found = self._at[key]
        if found is None:
            return None, 0
        other = self._sequences.get(found)
        shorter = min(len(ids), len(other))
        differs = ids[:shorter] != other[:shorter]
        shared = int(differs.argmax()) if differs.any() else shorter
        return (found, shared) if shared else (None, 0)

    def _put(self, fields: Mapping[str, Any]) -> None:
        self._line += 1
        self._file.write(json.dumps(fields, ensure_ascii=False, separators=(", ", ": ")) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._part, self.path)  # noqa: PTH105  (both are on one file system by construction)
        else:
            self._part.unlink(missing_ok=True)


def _base(row: Mapping[str, Any]) -> tuple[int | None, int]:
    given = row.get("from")
    if given is None:
        return None, 0
    if not isinstance(given, list) or len(given) != 2 or any(type(each) is not int or each < 0 for each in given):
        raise MalformedRow(f"'from' is {given!r:.60}, not [line, tokens]")
    return given[0], given[1]


def _ids(row: Mapping[str, Any], key: str) -> TokenIds:
    given = row.get(key)
    if not isinstance(given, list):
        raise MalformedRow(f"{key!r} is no list")
    if set(map(type, given)) <= {int}:
        if given and not 0 <= min(given) <= max(given) < LARGEST_ID:
            raise MalformedRow(f"{key!r} holds an ID outside [0, {LARGEST_ID})")
        return np.array(given, np.int32)
    pieces = []
    for each in given:
        if not isinstance(each, list) or len(each) != 2 or any(type(end) is not int for end in each):
            raise MalformedRow(f"{key!r} is neither a list of IDs nor of [start, stop] ranges")
        if not 0 <= each[0] < each[1] <= LARGEST_ID:
            raise MalformedRow(f"{key!r} holds {each}, no range of IDs in [0, {LARGEST_ID})")
        pieces.append(np.arange(*each, dtype=np.int32))
    return np.concatenate(pieces)


def _spelled(ids: TokenIds) -> list[int] | list[list[int]]:
    """The shorter of both spellings."""
    breaks = np.flatnonzero(np.diff(ids.astype(np.int64)) != 1) + 1
    if 2 * (len(breaks) + 1) >= len(ids):
        return [int(each) for each in ids]
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(ids, breaks)]
