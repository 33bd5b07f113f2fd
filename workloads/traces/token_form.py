"""Block IDs to token IDs: two prompts share exactly the tokens of the blocks they share, and not one more.

    block   [ first ][ rest ... ]      rest: a stretch of one random pool, shifted by an offset; both from the key
              |
              children of one parent are numbered as they come; their firsts are that many steps from the parent's own

Chance would otherwise make one in V pairs of siblings equal in their first token, and a radix tree or a slot sees that.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vocabulary.errors import UsageError
from workloads.traces.base import TokenIds, TraceRequest
from workloads.traces.chain import mix

Indexes = npt.NDArray[np.uint32]
POOL_LEN = 1 << 16


class TokenForm:
    """Turns the requests of one trace, in order, into token IDs; equal seeds and equal requests give equal IDs.

    Remembers a number for every distinct block, so that siblings start differently (about 100 bytes each).
    """

    def __init__(self, vocab_size: int, seed: int = 0, *, reserved: frozenset[int] = frozenset()) -> None:
        """IDs are drawn from `[0, vocab_size)` without `reserved`."""
        self._begin(np.setdiff1d(np.arange(vocab_size, dtype=np.int32), list(reserved), assume_unique=True), seed)

    @classmethod
    def of(cls, drawable: npt.NDArray[np.integer[Any]], seed: int) -> Self:
        """IDs are drawn from these, ascending."""
        form = cls.__new__(cls)
        form._begin(drawable.astype(np.int32), seed)
        return form

    def _begin(self, allowed: TokenIds, seed: int) -> None:
        if not len(allowed):
            raise UsageError("the vocabulary has no token ID that may be drawn")
        self._allowed = allowed
        self._plain = int(allowed[-1]) == len(allowed) - 1
        self._seed = mix(np.array([seed % 2**64], np.uint64))[0]
        self._views: dict[int, Indexes] = {}
        self._firsts: dict[tuple[str | None, int], int] = {}
        self._children: dict[tuple[str | None, int], int] = {}

    def ids(self, request: TraceRequest, *, redraw: bool = False) -> TokenIds:
        """The prompt, shape `(input_len,)`; the trace's own IDs where it has them, unless they are to be drawn anew.

        UsageError where a prompt has more siblings than the vocabulary has IDs, or an ID lies outside the vocabulary.
        """
        if request.ids is not None and not redraw:
            self._check(request)
            return request.ids
        # Gathering from a pool and shifting costs a tenth of hashing every token; distinct blocks stay distinct to all
        # who compare their insides too, since equal stretches under equal offsets are one chance in POOL_LEN * V.
        size = len(self._allowed)
        keys = mix(request.blocks.view(np.uint64) ^ self._seed)
        starts = (keys >> np.uint64(48)).astype(np.int64)
        offsets = (((keys & np.uint64(2**32 - 1)) * np.uint64(size)) >> np.uint64(32)).astype(np.uint32)
        indexes = self._stretches(request.block_len)[starts]
        indexes += offsets[:, None]
        np.minimum(indexes, indexes - np.uint32(size), out=indexes)  # modulo: below `size` the difference wraps up
        indexes[:, 0] = self._first(request)
        flat = indexes.reshape(-1)[: request.input_len]
        return flat.view(np.int32) if self._plain else self._allowed[flat]

    def output(self, request: TraceRequest) -> TokenIds:
        """What an engine may be told to generate: the trace's own IDs, or `output_len` drawn for this line."""
        if request.output_ids is not None:
            return request.output_ids
        start = mix(np.array([request.line], np.uint64) ^ ~self._seed)[0]
        return self._allowed[self._drawn(start, request.output_len)]

    def _drawn(self, start: np.uint64, count: int) -> Indexes:
        """Indexes into the vocabulary; the high half of a hash is spread over it by a multiplication."""
        drawn = mix(start + np.arange(count, dtype=np.uint64)) >> np.uint64(32)
        return ((drawn * np.uint64(len(self._allowed))) >> np.uint64(32)).astype(np.uint32)

    def _stretches(self, block_len: int) -> Indexes:
        """Every stretch of `block_len` of the pool, as a view of shape `(POOL_LEN + 1, block_len)`."""
        if block_len not in self._views:
            pool = self._drawn(self._seed, POOL_LEN + block_len)
            self._views[block_len] = np.lib.stride_tricks.sliding_window_view(pool, block_len)
        return self._views[block_len]

    def _first(self, request: TraceRequest) -> Indexes:
        """Index of each block's first token: its parent's own offset and its number among the parent's children."""
        size, space, firsts = len(self._allowed), request.namespace, self._firsts
        found = []
        parent = 0
        for key in request.blocks.tolist():
            first = firsts.get((space, key))
            if first is None:
                number = self._children.get((space, parent), 0)
                if number == size:
                    raise UsageError(
                        f"line {request.line}: more than {size} different blocks follow one prefix, more than there "
                        f"are token IDs to begin them with; take a larger vocabulary or fewer rows"
                    )
                self._children[space, parent] = number + 1
                first = firsts[space, key] = (parent + number) % size
            found.append(first)
            parent = key
        return np.array(found, np.uint32)

    def _check(self, request: TraceRequest) -> None:
        ids = request.ids
        assert ids is not None
        if len(ids) and not 0 <= ids.min() <= ids.max() <= self._allowed[-1]:
            raise UsageError(
                f"line {request.line}: token IDs reach {ids.max()}, the vocabulary ends at {self._allowed[-1]}; "
                f"`redraw = true` in an experiment's workload draws others"
            )
