"""Prompts known by chained block numbers instead of tokens: what laws need of a token sequence, at a trace's cost.

A trace says for each block of a prompt which whole prefix it ends. Every rule here asks a sequence only whether two
prefixes are equal, so numbers can stand for tokens: a prefix of p tokens is the pair of the number of the block that p
ends in and the place inside it. `sequence(request)` gives a law either form; both slice, and `common_prefix`, `name`
and `numbers` mean the same for both. tests/laws/test_chained.py holds the ledgers of the two forms against each other.

What this rests on: an equal number means an equal prefix up to the end of the block, and the first tokens of two
different blocks behind one prefix differ. Generated tokens are a block of their own, which continues one prompt only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover

Numbers = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]
Number = TypeVar("Number", bound=np.generic)
NO_NUMBERS: Numbers = np.empty(0, np.int64)


class Chained:
    """Tokens `[start, stop)` of one request's prompt and output, by the blocks of the whole."""

    __slots__ = ("ahead", "block_len", "blocks", "capacity", "outputs", "prompt_len", "start", "stop")

    def __init__(self, blocks: Numbers, block_len: int, prompt_len: int, outputs: int, capacity: int) -> None:
        """`blocks`: number of each started block of the prompt; `outputs`: the number of all generated tokens;
        `capacity`: most tokens of prompt and output."""
        self.blocks, self.block_len, self.prompt_len, self.outputs = blocks, block_len, prompt_len, outputs
        self.start, self.stop, self.capacity = 0, capacity, capacity
        self.ahead = 0
        """Tokens behind its own that an element also stands for (1: pairs of a token and its successor)."""

    def __len__(self) -> int:
        return self.stop - self.start

    def prompt(self) -> Chained:
        """Without generated tokens."""
        return self._view(0, self.prompt_len, 0)

    def __getitem__(self, part: slice) -> Chained:
        """A part, with a step of 1 and no negative ends."""
        first, last, _ = part.indices(self.stop - self.start)
        return self._view(self.start + first, self.start + max(first, last), self.ahead)

    def pairs(self) -> Chained:
        """Each token with its successor, one less."""
        return self._view(self.start, max(self.stop - 1, self.start), 1)

    def copy(self) -> Chained:
        """The same, with the blocks of nothing else; a part of a long prompt does not keep all of it."""
        copied = self._view(self.start, self.stop, self.ahead)
        copied.blocks = self.blocks.copy()
        return copied

    def _view(self, start: int, stop: int, ahead: int) -> Chained:
        view = Chained.__new__(Chained)
        view.blocks, view.block_len = self.blocks, self.block_len
        view.prompt_len, view.outputs, view.capacity = self.prompt_len, self.outputs, self.capacity
        view.start, view.stop, view.ahead = start, stop, ahead
        return view

    def common(self, other: Chained) -> int:
        """Length of the common prefix of two parts that start at one place, behind equal prefixes."""
        return self.agrees(other, self.start, min(self.stop, other.stop)) - self.start

    def agrees(self, other: Chained, start: int, stop: int) -> int:
        """Up to where in `[start, stop)`, counted from the begin, two sequences behind one prefix are equal."""
        end = stop + self.ahead
        within = min(end, self.prompt_len, other.prompt_len)
        block, mine, theirs = self.block_len, self.blocks, other.blocks
        last = (within - 1) // block
        # Most agree up to the last block or differ in the first: no arrays for them.
        if within > start and mine.item(last) != theirs.item(last):
            first = start // block
            if mine.item(first) != theirs.item(first):
                return start
            differs = mine[first : last + 1] != theirs[first : last + 1]
            within = (first + int(differs.argmax())) * block
        elif within == end or (self.prompt_len == other.prompt_len and self.outputs == other.outputs):
            return stop
        return max(within - self.ahead, start)

    def name(self, position: int, count: int) -> object:
        """What tells the `count` elements from `position` on from others behind the same prefix."""
        end = self.start + position + count + self.ahead
        within = min(end, self.prompt_len)
        name = self.blocks.item((within - 1) // self.block_len)
        return name if within == end else (name, self.outputs)

    def units(self, unit: int, lookahead: int) -> int:
        """Prefixes of whole units that end, `lookahead` tokens included, within the prompt."""
        return max(min(self.prompt_len, self.stop) - lookahead, 0) // unit

    def numbers(self, unit: int, lookahead: int, firsts: Numbers) -> Numbers:
        """Numbers of the prefixes of `unit`, `2 unit`, ... tokens within the prompt, each with `lookahead` more.

        `firsts`: where the numbers of each block begin, of which it needs `per_block`.
        """
        block, inside = self.block_len, self.units(unit, lookahead)
        numbers: Numbers
        if block % unit == 0 and not lookahead:
            numbers = (firsts[:, None] + np.arange(block // unit)).reshape(-1)[:inside]
        else:
            ends = np.arange(1, inside + 1) * unit + (lookahead - 1)
            numbers = firsts[ends // block] + ends % block // unit
        return numbers


Tokens = Ids | Chained
"""A token sequence in either form."""


def per_block(block_len: int, unit: int) -> int:
    """Most prefixes in whole units that end inside one block."""
    return -(-block_len // unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedRequest(TokenRequest):
    """A request whose prompt is known by its chained blocks; `ids` is empty, and only laws that say so read it."""

    ids: tuple[int, ...] = ()
    chain: Chained

    @property
    def prompt_len(self) -> int:
        """Tokens in the prompt."""
        return self.chain.prompt_len

    @property
    def array(self) -> Ids:
        """There is none: TypeError, since a law that asked has to be given tokens."""
        raise TypeError(f"request {self.request_id} is known by blocks; give this law its tokens")


def chained_request(
    request_id: str,
    blocks: Numbers,
    block_len: int,
    prompt_len: int,
    outputs: int,
    max_tokens: int = 1,
    *,
    namespace: str | None = None,
    lora: str | None = None,
) -> ChainedRequest:
    """A request by its block numbers, counted from 1; `outputs` is a number that no other request has.

    Numbers should be dense: tables are as long as the largest.
    """
    chain = Chained(blocks, block_len, prompt_len, outputs, prompt_len + max_tokens)
    return ChainedRequest(request_id=request_id, chain=chain, max_tokens=max_tokens, namespace=namespace, lora=lora)


def sequence(request: TokenRequest) -> Ids | Chained:
    """The prompt in the form the request has."""
    if isinstance(request, ChainedRequest):
        return request.chain.prompt()
    return request.array


def tokens_of(given: Tokens, who: str) -> Ids:
    """An array; LawDoesNotCover where the tokens are known by blocks only."""
    if isinstance(given, Chained):
        raise LawDoesNotCover(f"{who} compares tokens inside prompts, and a trace's blocks do not show them")
    return given


class Numbering:
    """Begin of the numbers of every block, by namespace: handed out when a block is first seen. 8 bytes per block."""

    def __init__(self) -> None:
        self._firsts: dict[object, Numbers] = {}

    def firsts(self, namespace: object, blocks: Numbers, step: int, used: int) -> tuple[Numbers, int]:
        """Where the numbers of these blocks begin, and how many numbers are used then; `used` are by now."""
        table = self._firsts.get(namespace, NO_NUMBERS)
        try:
            firsts = table.take(blocks)
        except IndexError:
            table = self._firsts[namespace] = longer(table, int(blocks.max()) + 1)
            firsts = table.take(blocks)
        new = len(firsts) - int(np.count_nonzero(firsts))
        if new:
            unknown = firsts == 0
            firsts[unknown] = np.arange(used + 1, used + 1 + new * step, step)
            table[blocks[unknown]] = firsts[unknown]
        return firsts, used + new * step

    def known(self) -> Numbers:
        """Where all the numbers begin that have been handed out, in no order."""
        return np.concatenate([NO_NUMBERS, *(table[table != 0] for table in self._firsts.values())])

    def move(self, moved: Callable[[Numbers], Numbers]) -> None:
        """Numbers begin elsewhere now; 0: the block is forgotten, and gets others when it is seen again."""
        for table in self._firsts.values():
            known = np.flatnonzero(table)
            table[known] = moved(table[known])


class ChainedHistory:
    """How much of every block has been computed; the longest common prefix with all that was added.

    Whether a token is novel needs the memory of everything: 4 bytes per block.
    """

    def __init__(self) -> None:
        self._computed = NO_NUMBERS.astype(np.int32)

    def lcp(self, chain: Chained) -> int:
        """Of a prompt, or a part from its begin on; generated tokens are in no other sequence."""
        computed = self._of(chain.blocks)
        short = computed < chain.block_len
        known = len(short) * chain.block_len
        if short.any():
            at = int(short.argmax())
            known = at * chain.block_len + int(computed[at])
        return min(known, chain.prompt_len, chain.stop)

    def add(self, chain: Chained) -> None:
        """All of it has been computed."""
        length, block = min(chain.stop, chain.prompt_len), chain.block_len
        whole, rest = divmod(length, block)
        computed = self._of(chain.blocks)
        computed[:whole] = block
        if rest:
            computed[whole] = max(rest, computed.item(whole))
        self._computed[chain.blocks] = computed

    def _of(self, blocks: Numbers) -> npt.NDArray[np.int32]:
        try:
            return self._computed.take(blocks)
        except IndexError:
            self._computed = longer(self._computed, int(blocks.max()) + 1)
            return self._computed.take(blocks)


def longer(table: npt.NDArray[Number], size: int) -> npt.NDArray[Number]:
    """The table with at least `size` elements, the new ones 0."""
    wider = np.zeros(max(2 * len(table), size), table.dtype)
    wider[: len(table)] = table
    return wider
