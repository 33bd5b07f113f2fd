"""From leases to forward calls: which rows, positions and slots a prefill or a decode hands to the decoder.

Bit equality. A prefill runs request by request, in calls that end at absolute multiples of `prefill_grid` or at the
prompt's end, wherever they start. A request that starts at a multiple of the grid therefore makes exactly the calls
(shapes, inputs, order) that a cold run makes from there on, and its logits equal the cold run's bit for bit, provided
the reused positions were computed in whole grid cells too. Everywhere else the same sums are taken in other groupings,
and logits differ by up to `OFF_GRID_TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from reference_engine.attention import Extend, extend_mask
from reference_engine.laws.base import Lease
from reference_engine.model import Call, Decoder
from vocabulary.engine import Span

OFF_GRID_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}
"""Largest difference of a logit, as a share of the largest absolute logit, per compute type.

Measured on an AVX2 CPU with torch 2.13 over starts 1, 100, 257, 511, L - 14 and L - 1: 2e-6 in fp32 (SmolLM2; 1e-6 on
the tiny models), 0.01 in bf16; on the grid 0 in both.
"""


def grid_calls(start: int, end: int, grid: int) -> Iterator[Span]:
    """Cut `[start, end)` at every absolute multiple of `grid`."""
    while start < end:
        stop = min((start // grid + 1) * grid, end)
        yield start, stop
        start = stop


class Runner:
    """Builds the calls of one decoder."""

    def __init__(self, decoder: Decoder, prefill_grid: int) -> None:
        self.decoder, self.prefill_grid = decoder, prefill_grid
        self._dtype, self._device = decoder.pool.keys.dtype, decoder.pool.keys.device

    def prefill(self, lease: Lease, start: int, end: int) -> tuple[Call, Tensor | None]:
        """Compute prompt positions `[start, end)`.

        Returns the first call made and, where `end` is the prompt's end, the logits `[1, vocab]` of the next token.
        """
        calls = [self._prefill_call(lease, *span) for span in grid_calls(start, end, self.prefill_grid)]
        for call in calls[:-1]:
            self.decoder.forward(call, want_logits=False)
        return calls[0], self.decoder.forward(calls[-1], want_logits=end == lease.request.prompt_len)

    def decode(self, leases: Sequence[Lease]) -> Tensor:
        """Compute the latest token of each lease; logits `[len(leases), vocab]` of the next ones."""
        pool, last = self.decoder.pool, [lease.length - 1 for lease in leases]
        extends = [
            Extend(slice(row, row + 1), pool.index(lease.slots[: lease.length]), None)
            for row, lease in enumerate(leases)
        ]
        call = Call(
            ids=self._tensor([lease.ids[at] for lease, at in zip(leases, last, strict=True)]),
            positions=self._tensor(last),
            slots=pool.index(np.array([lease.slots[at] for lease, at in zip(leases, last, strict=True)])),
            extends=extends,
        )
        logits = self.decoder.forward(call, want_logits=True)
        assert logits is not None
        return logits

    def warm_up(self) -> None:
        """Run the largest call and the smallest once, over slots that hold nothing yet."""
        for length in (min(self.prefill_grid, self.decoder.pool.pool_tokens, self.decoder.config.context_len), 1):
            index, ids = slice(0, length), self._tensor([0] * length)
            positions = self._tensor(range(length))
            call = Call(ids=ids, positions=positions, slots=index, extends=[Extend(index, index, None)])
            self.decoder.forward(call, want_logits=True)

    def _prefill_call(self, lease: Lease, start: int, end: int) -> Call:
        pool, rows = self.decoder.pool, slice(0, end - start)
        mask = extend_mask(start, end, self._dtype, self._device)
        return Call(
            ids=self._tensor(lease.ids[start:end]),
            positions=self._tensor(range(start, end)),
            slots=pool.index(lease.slots[start:end]),
            extends=[Extend(rows, pool.index(lease.slots[:end]), mask)],
        )

    def _tensor(self, values: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int32]]) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.int64)).to(self._device)
