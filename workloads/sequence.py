"""What a workload is: sends in order, each prompt made of fixed IDs and, in growing chats, of earlier outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from vocabulary.engine import Feature, Media, TokenRequest

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Run(Sequence[int]):
    """`size` consecutive entries of a table of IDs, which begins again at its end: a prompt in its run-length form."""

    table: npt.NDArray[np.int64]
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Run: ...
    def __getitem__(self, index: int | slice) -> int | Run:
        if isinstance(index, slice):
            begin, end, step = index.indices(self.size)
            if step != 1:
                raise ValueError("a run has no strides")
            return Run(self.table, self.start + begin, max(0, end - begin))
        return int(self.table[(self.start + range(self.size)[index]) % len(self.table)])

    def ids(self) -> Ids:
        """Every ID."""
        return tuple(self.table[np.arange(self.start, self.start + self.size) % len(self.table)].tolist())


@dataclass(frozen=True, slots=True)
class OutputOf:
    """The generated IDs of an earlier send, by its index; positions `[start, stop)` of them."""

    send: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Unlike:
    """One ID that is not the one an earlier send generated at `index`: the first of `choices`, else the second."""

    send: int
    index: int
    choices: tuple[int, int]


Part = Sequence[int] | OutputOf | Unlike


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One request of a workload."""

    label: str
    """Short name, equal for sends of the same prompt: "A", "L=257", "turn 2"."""
    parts: tuple[Part, ...]
    max_tokens: int = 1
    namespace: str | None = None
    lora: str | None = None
    """Adapter; only laws and lookups know any."""
    media: tuple[Media, ...] = ()
    """Items at some of its positions; only laws and lookups know any."""
    features: frozenset[Feature] = frozenset()
    reset_before: bool = False
    """Empty the cache before this send."""
    with_previous: bool = False
    """Send it at the same moment as the send before it."""
    at_ns: int | None = None
    """Send it so long after the first of those sent together, answered or not; None: at once."""
    at_most: int | None = None
    """Tokens that it may hit; more is a finding (`forbidden_hit`). None: what the law says, and never more than P."""

    def prompt(self, outputs: Sequence[Ids]) -> Ids:
        """The prompt's token IDs, given the outputs of the sends before this one."""
        ids: list[int] = []
        for part in self.parts:
            if isinstance(part, OutputOf):
                ids.extend(outputs[part.send][part.start : part.stop])
            elif isinstance(part, Unlike):
                first, second = part.choices
                ids.append(second if outputs[part.send][part.index] == first else first)
            else:
                ids.extend(part.ids() if isinstance(part, Run) else part)
        return tuple(ids)

    def request(
        self, request_id: str, outputs: Sequence[Ids], more_features: frozenset[Feature] = frozenset()
    ) -> TokenRequest:
        """The request, given the outputs of the sends before this one."""
        return TokenRequest(
            request_id=request_id,
            ids=self.prompt(outputs),
            max_tokens=self.max_tokens,
            namespace=self.namespace,
            lora=self.lora,
            media=self.media,
            features=self.features | more_features,
        )


def prompt_lengths(sends: Sequence[Send]) -> list[int]:
    """Tokens in each prompt; an output has `max_tokens` of its send."""

    def length(part: Part) -> int:
        if isinstance(part, OutputOf):
            return len(range(sends[part.send].max_tokens)[part.start : part.stop])
        return 1 if isinstance(part, Unlike) else len(part)

    return [sum(map(length, send.parts)) for send in sends]


def batches(sends: Sequence[Send]) -> list[list[Send]]:
    """The sends by moment: one each, or several at once."""
    found: list[list[Send]] = []
    for send in sends:
        if send.with_previous and found:
            found[-1].append(send)
        else:
            found.append([send])
    return found


def fingerprint(request: TokenRequest) -> str:
    """SHA-256 of the IDs, those of items included, as little-endian 32-bit integers."""
    return hashlib.sha256(np.asarray(request.array, "<i4").tobytes()).hexdigest()
