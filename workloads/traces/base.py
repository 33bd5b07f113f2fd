"""One request of a trace, and what every reader has in common: streaming, malformed rows, chain keys.

    reader = Mooncake(path)
    for request in reader:           # every loop reads the file anew
        request.blocks               # chain keys: equal key, equal prefix up to the end of that block
    reader.malformed, reader.split_ids, reader.blind_below

Rows are decoded one by one and keyed in batches, so memory holds a batch and not the file.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from abc import ABC, abstractmethod
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from vocabulary.errors import UsageError
from workloads.traces.chain import Keys, SplitCount, chain_keys

BATCH_ROWS = 1024
MAX_KEPT = 100
"""Malformed rows kept with their reason; all are counted."""
UNNAMED = -(1 << 62)
"""IDs from here down are given to partial blocks that a trace does not name."""
TokenIds = npt.NDArray[np.int32]
LATEST_NS = 2**62
"""Times lie below: columns hold 63 bits."""
BlockIds: TypeAlias = "array[int]"  # no array can be subscripted before Python 3.12
DECODER = json.JSONDecoder()
"""`raw_decode` of it takes half the time of `json.loads` on a trace's lines."""


class MalformedRow(ValueError):
    """A row is not what its format says; the message tells why."""


@dataclass(slots=True, kw_only=True, eq=False)
class TraceRequest:
    """One request as a trace knows it. Not frozen, as `Row`: that would make each three times as expensive."""

    line: int
    """In the file, from 1."""
    arrival_ns: int | None
    """On the trace's own clock; None: it has no times."""
    blocks: Keys
    """Chain key of each started block, shape `(ceil(input_len / block_len),)`: two requests share their first n
    blocks where they share key n-1 in one namespace."""
    block_len: int
    """Tokens in a block; the last may be partial."""
    input_len: int
    output_len: int
    ids: TokenIds | None = None
    """The prompt's token IDs, where the trace has them."""
    output_ids: TokenIds | None = None
    """What was generated, where the trace has it."""
    session: str | None = None
    parent: str | None = None
    """What the trace names as the turn or request before this one."""
    namespace: str | None = None
    """Requests of different namespaces never share."""
    lora: str | None = None
    """Adapter, where the trace names one."""
    hit_len: int | None = None
    """Tokens that the engine behind the trace took from its cache, where the trace tells."""

    def scaled(self, divide: int) -> TraceRequest:
        """All lengths divided, sharing kept block by block; a partial block or an answer keeps one token at least.

        UsageError where the block is no multiple of `divide`; token IDs are lost.
        """
        if divide == 1:
            return self
        if divide < 1 or self.block_len % divide:
            raise UsageError(
                f"a trace with blocks of {self.block_len} tokens cannot be divided by {divide}; "
                f"take a divisor of the block"
            )
        full, partial = divmod(self.input_len, self.block_len)
        block_len = self.block_len // divide
        return replace(
            self,
            block_len=block_len,
            input_len=full * block_len + math.ceil(partial / divide),
            output_len=math.ceil(self.output_len / divide),
            ids=None,
            output_ids=None,
            hit_len=None,
        )


@dataclass(slots=True, kw_only=True)
class Row:
    """What a format's own decoder takes from one line."""

    ids: BlockIds | Keys
    """Block IDs as the trace has them, 64 bits each."""
    arrival_ns: int | None
    input_len: int
    output_len: int
    session: str | None = None
    parent: str | None = None
    namespace: str | None = None
    lora: str | None = None
    hit_len: int | None = None
    token_ids: TokenIds | None = None
    output_ids: TokenIds | None = None


@dataclass(frozen=True, slots=True)
class Malformed:
    """A row that was skipped."""

    line: int
    why: str


class TraceReader(ABC):
    """Iterates over the requests of one file (plain or `.gz`), in file order; the counts are of the last loop."""

    format: ClassVar[str]
    """Name on the command line."""
    chained: ClassVar[bool] = False
    """Whether `decode` gives chain keys already, so that none is made and no ID can be split."""
    usual_block_len: ClassVar[int]

    def __init__(
        self,
        path: Path,
        *,
        block_len: int | None = None,
        skip_malformed: bool = False,
        rekey: bool = True,
        limit: int | None = None,
    ) -> None:
        """`block_len`: where a file was made with another block than its format's usual one.

        `rekey=False` keeps the trace's own block IDs (to reproduce counts that take them at their word); `limit`: only
        so many requests.
        """
        self.block_len = self.usual_block_len if block_len is None else block_len
        if self.block_len < 1:
            raise UsageError(f"a block of {block_len} tokens: it holds one at least")
        self.path, self.limit = path, limit
        self._skip, self._rekey = skip_malformed, rekey
        self.rows = 0
        """Requests read."""
        self.malformed = 0
        """Rows skipped."""
        self.malformed_rows: list[Malformed] = []
        """The first of them, with reasons."""
        self._splits = SplitCount()

    @property
    def split_ids(self) -> int:
        """Block IDs seen behind more than one prefix: re-keying made several of each."""
        return self._splits.total()

    @property
    def blind_below(self) -> str:
        """What this trace cannot show, in a sentence."""
        return (
            f"blocks of {self.block_len} tokens: the trace cannot see below {self.block_len} tokens, "
            f"and every shared prefix may be up to {self.block_len - 1} tokens longer than it says"
        )

    @abstractmethod
    def decode(self, row: Mapping[str, Any], line: int) -> Sequence[Row]:
        """The requests of one line, checked; MalformedRow says what is wrong with it. Called in file order."""

    def __iter__(self) -> Iterator[TraceRequest]:
        """Raises UsageError for a file that cannot be read and, unless they are to be skipped, for malformed rows."""
        self.rows = self.malformed = 0
        self.malformed_rows, self._splits = [], SplitCount()
        self.restart()
        rows = islice(self._rows(), self.limit)
        while batch := list(islice(rows, BATCH_ROWS)):
            self.rows += len(batch)
            yield from self._requests(batch)

    def restart(self) -> None:  # noqa: B027  (most formats remember nothing)
        """A new loop begins: forget what `decode` remembers."""

    def _rows(self) -> Iterator[tuple[int, Row]]:
        for number, line in lines(self.path):
            if line.isspace():
                continue
            try:
                decoded = self.decode(_object(line), number)
            except MalformedRow as error:
                self._note(number, str(error))
                continue
            for row in decoded:
                yield number, row

    def _note(self, line: int, why: str) -> None:
        if not self._skip:
            raise UsageError(f"{self.path}:{line}: {why}; `skip_malformed` (--skip-malformed) leaves such rows out")
        self.malformed += 1
        if len(self.malformed_rows) < MAX_KEPT:
            self.malformed_rows.append(Malformed(line, why))

    def _requests(self, batch: Sequence[tuple[int, Row]]) -> Iterator[TraceRequest]:
        lengths = np.fromiter((len(row.ids) for _, row in batch), np.int64, len(batch))
        ids: Keys = np.concatenate([row.ids for _, row in batch])
        keys = ids
        if not self.chained:
            keys = chain_keys(ids, lengths)
            self._splits.add(ids, keys)
            keys = keys if self._rekey else ids
        ends = np.cumsum(lengths)
        for (line, row), end, length in zip(batch, ends.tolist(), lengths.tolist(), strict=True):
            yield TraceRequest(
                line=line,
                arrival_ns=row.arrival_ns,
                blocks=keys[end - length : end],
                block_len=self.block_len,
                input_len=row.input_len,
                output_len=row.output_len,
                ids=row.token_ids,
                output_ids=row.output_ids,
                session=row.session,
                parent=row.parent,
                namespace=row.namespace,
                lora=row.lora,
                hit_len=row.hit_len,
            )


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a file, unpacked where its name ends in `.gz`; UsageError where it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            if first := file.readline():
                yield 1, first.removeprefix(BOM_UTF8)
            yield from enumerate(file, start=2)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except EOFError:
        raise UsageError(f"{path}: the compressed file ends in the middle") from None
    except zlib.error as error:
        raise UsageError(f"{path}: the compressed file is damaged: {error}") from None


def first_line(path: Path) -> bytes:
    """The first line that is not empty; b"" where there is none."""
    return next((line for _, line in lines(path) if not line.isspace()), b"")


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        text = line.decode().strip()
        row, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRow(f"not JSON ({error})") from None
    if end < len(text):
        raise MalformedRow(f"not JSON (extra data: column {end + 1})")
    if not isinstance(row, dict):
        raise MalformedRow("not a JSON object")
    return row


def whole(row: Mapping[str, Any], key: str, *, least: int = 0) -> int:
    """A whole number of a row."""
    value = row.get(key)
    if type(value) is not int or not least <= value < 2**40:
        raise MalformedRow(f"{key!r} is {value!r:.60}, not a whole number of at least {least}")
    return value


def time_ns(row: Mapping[str, Any], key: str, unit_ns: int) -> int:
    """A time of a row, as nanoseconds."""
    value: object = row.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < LATEST_NS / unit_ns:
        raise MalformedRow(f"{key!r} is {value!r:.60}, not a time of at least 0")
    return round(value * unit_ns)


def id_list(row: Mapping[str, Any], key: str) -> BlockIds:
    """A list of IDs that fit 64 bits; a hash above 2**63 becomes the negative number of the same bits."""
    ids = row.get(key)
    if not isinstance(ids, list) or not {*map(type, ids)} <= {int}:
        raise MalformedRow(f"{key!r} is no list of whole numbers")
    try:
        return array("q", ids)
    except OverflowError:
        if not -(2**63) <= min(ids) <= max(ids) < 2**64:
            raise MalformedRow(f"{key!r} holds a number beyond 64 bits") from None
        return array("q", (each - 2**64 if each >= 2**63 else each for each in ids))


def block_list(row: Mapping[str, Any], key: str, input_len: int, block_len: int, line: int) -> BlockIds:
    """IDs of all started blocks.

    Some formats name whole blocks only; a partial one then gets an ID that no other line has. MalformedRow where there
    are not as many as the length asks for.
    """
    ids = id_list(row, key)
    started = -(-input_len // block_len)
    if len(ids) == started - 1 and input_len % block_len:
        ids.append(UNNAMED - line)
    if len(ids) != started:
        raise MalformedRow(f"{input_len} tokens in blocks of {block_len} are {started} IDs, {key!r} has {len(ids)}")
    return ids


def text_or_none(row: Mapping[str, Any], key: str) -> str | None:
    """A name of a row, given as text or number; None where it is absent."""
    value = row.get(key)
    if value is not None and type(value) not in (str, int):
        raise MalformedRow(f"{key!r} is {value!r:.60}, neither text nor a whole number")
    return None if value is None else str(value)
