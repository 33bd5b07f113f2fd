"""From leases to forward calls: which rows, positions and slots a prefill or a decode hands to the decoder.

Bit equality. A prefill runs request by request, in calls that end at absolute multiples of `prefill_grid` or at the
step's end, wherever they start. A request that starts at a multiple of the grid therefore makes exactly the calls
(shapes, inputs, order) that a cold run makes from there on, and its logits equal the cold run's bit for bit, provided
the reused positions were computed in whole grid cells too. Everywhere else the same sums are taken in other groupings,
and logits differ by up to `OFF_GRID_TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reference_engine.attention import extend_mask
from reference_engine.call import AttentionRows, Call, Extend, StateRows
from reference_engine.kernels.shapes import StateBatch, StateSequence
from reference_engine.laws.base import Ids, Law, Lease
from reference_engine.laws.memory import Room, Slots
from reference_engine.model import Decoder
from reference_engine.pools import KVPool, StatePool, slot_index
from vocabulary.engine import Span
from vocabulary.groups import Kind

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


@dataclass(frozen=True, slots=True)
class Part:
    """One request's rows of a call: positions `[start, end)` of its tokens."""

    lease: Lease
    start: int
    end: int
    ids: Ids
    """Of the rows; drafts are not among the lease's tokens yet."""
    states: tuple[StateSequence | None, ...]
    """Per group, with rows counted from 0; None for attention groups."""


class Runner:
    """Builds the calls of one decoder under one law; the law's rooms are the first slots of the decoder's pools."""

    def __init__(self, decoder: Decoder, law: Law, rooms: Sequence[Room], prefill_grid: int) -> None:
        """`rooms` with all sizes known; slots of a pool behind its room are the runner's own."""
        self.decoder, self.law, self.rooms, self.prefill_grid = decoder, law, tuple(rooms), prefill_grid
        self._dtype, self._device = decoder.weights.embedding.dtype, decoder.weights.embedding.device
        law.moves.followed = True

    def prefill(self, lease: Lease, start: int, end: int) -> tuple[list[Call], Tensor]:
        """Compute prompt positions `[start, end)`.

        Returns the calls made and, behind the last one, the logits `[1, vocab]` of the next token or, for a model that
        drafts, the hidden states `[end - start, hidden]`.
        """
        self.move()
        stored = [self._stored(lease, group, start, end) for group in range(len(self.rooms))]
        calls = [
            self._call([self._prefill_part(lease, (start, end), span, stored)])
            for span in grid_calls(start, end, self.prefill_grid)
        ]
        if self.decoder.config.mtp:
            return calls, torch.cat([self.decoder.hidden(call) for call in calls])
        for call in calls[:-1]:
            self.decoder.forward(call, want_logits=False)
        wanted = end == lease.request.prompt_len
        logits = self.decoder.forward(calls[-1], want_logits=wanted)
        return calls, torch.empty(0) if logits is None else logits

    def decode(self, leases: Sequence[Lease]) -> Tensor:
        """Compute the latest token of each lease; logits `[len(leases), vocab]` of the next ones."""
        self.move()
        logits = self.decoder.forward(
            self._call([self._decode_part(lease) for lease in leases], packed=True), want_logits=True
        )
        assert logits is not None
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[n, vocab]` in fp32 of hidden states `[n, hidden]`."""
        with torch.inference_mode():
            return self.decoder.weights.head(hidden).float()

    def verify(self, lease: Lease, drafts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Compute the latest token and the drafts behind it; logits and hidden states of these rows.

        Drafts' keys and values go to slots of the runner's own, and all rows' recurrent states: `keep` takes the
        accepted state at once, `settle` the accepted keys when the law has places for them.
        """
        self.move()
        start = lease.length - 1
        ids = np.concatenate([lease.ids[start : lease.length], np.asarray(drafts, np.int32)])
        states = tuple(
            StateSequence(0, len(ids), start, self._read(lease, group, start), tuple(self._trials(group, len(ids))))
            if room.group.kind is Kind.GDN
            else None
            for group, room in enumerate(self.rooms)
        )
        return self.decoder.forward_all(self._call([Part(lease, start, start + len(ids), ids, states)]))

    def keep(self, lease: Lease, start: int, end: int) -> None:
        """Of a verified call that began at `start`, the states of positions up to `end` are the request's."""
        for group, pool in enumerate(self.decoder.pools):
            if isinstance(pool, StatePool):
                trials = dict(self._trials(group, end - start))
                for position, slot in self.law.stores(lease, group, start, end):
                    pool.copy(np.array([trials[position - start]]), np.array([slot]))

    def settle(self, lease: Lease, count: int) -> None:
        """The first `count` drafts were right and are the lease's tokens now, before its latest: keep their keys."""
        end = lease.length - 1
        for group, pool in enumerate(self.decoder.pools):
            if count and isinstance(pool, KVPool):
                pool.copy(self._ahead(group, count), self.law.slots(lease, group, end - count, end))

    def draft(self, lease: Lease, start: int, ids: Sequence[int], hidden: Tensor) -> tuple[int, Tensor]:
        """Run the drafting head at positions `[start, start + len(ids))`.

        `ids` are the tokens behind these positions, `hidden` `[n, hidden]` the states at them. The guessed token after
        the last of `ids`, and the head's hidden state `[1, hidden]` there.
        """
        part = Part(lease, start, start + len(ids), np.asarray(ids, np.int32), (None,) * len(self.rooms))
        logits, states = self.decoder.draft(self._call([part]), hidden)
        return int(logits[-1].argmax()), states[-1:]

    def move(self) -> None:
        """Copy what the law has decided since the last call."""
        for move in self.law.moves.drain():
            pool, kind = self.decoder.pools[move.group], self.rooms[move.group].group.kind
            pool.copy(move.source, move.target)
            if move.turn:
                assert isinstance(pool, KVPool)
                index = slot_index(move.target, self._device)
                pool.keys[:, index] = self.decoder.rotaries[kind].turned(pool.keys[:, index], move.turn)

    def warm_up(self) -> None:
        """Run the largest call and the smallest once, over slots that hold nothing yet."""
        least = min((room.slots or 0 for room in self.rooms if room.group.kind is not Kind.GDN), default=1)
        for length in (max(1, min(self.prefill_grid, least, self.decoder.config.context_len)), 1):
            index, rows = slice(0, length), slice(0, length)
            batch = StateBatch.of([StateSequence(0, length, 0, None, ((length, 0),))], self._device)
            call = Call(
                ids=torch.zeros(length, dtype=torch.int64, device=self._device),
                positions=torch.arange(length, device=self._device),
                groups=tuple(
                    StateRows(batch)
                    if room.group.kind is Kind.GDN
                    else AttentionRows(index, (Extend(rows, 0, 0, index, self._mask(0, length, 0, room.group.window)),))
                    for room in self.rooms
                ),
                ends=(length,),
            )
            self.decoder.forward(call, want_logits=True)

    # -- the parts of a call ---------------------------------------------------------------------------------------

    def _call(self, parts: Sequence[Part], *, packed: bool = False) -> Call:
        """`packed`: one row each."""
        ends = np.cumsum([part.end - part.start for part in parts]).tolist()
        firsts = [0, *ends[:-1]]
        return Call(
            ids=self._tensor(np.concatenate([part.ids for part in parts])),
            positions=self._tensor(np.concatenate([np.arange(part.start, part.end) for part in parts])),
            groups=tuple(self._rows(group, parts, firsts) for group in range(len(self.rooms))),
            ends=tuple(ends),
        )

    def _rows(self, group: int, parts: Sequence[Part], firsts: Sequence[int]) -> AttentionRows | StateRows:
        kind, window = self.rooms[group].group.kind, self.rooms[group].group.window
        if kind is Kind.GDN:
            sequences = [self._placed(part.states[group], first) for part, first in zip(parts, firsts, strict=True)]
            return StateRows(StateBatch.of(sequences, self._device))
        extends, written = [], []
        for part, first in zip(parts, firsts, strict=True):
            first_key = 0 if window is None else max(0, part.lease.valid_from, part.start - window + 1)
            slots = self._slots(part.lease, group, first_key, part.end)
            written.append(slots[part.start - first_key :])
            rows = slice(first, first + part.end - part.start)
            mask = self._mask(part.start, part.end, first_key, window)
            extends.append(Extend(rows, part.start, first_key, slot_index(slots, self._device), mask))
        return AttentionRows(slot_index(np.concatenate(written), self._device), tuple(extends))

    @staticmethod
    def _placed(sequence: StateSequence | None, first: int) -> StateSequence:
        if sequence is None:  # the drafting head has no recurrent layer; this group is not run
            return StateSequence(first, 1, 0, None, ((1, 0),))
        return StateSequence(first, sequence.row_count, sequence.position, sequence.read_slot, sequence.stores)

    def _prefill_part(self, lease: Lease, step: Span, span: Span, stored: Sequence[dict[int, int]]) -> Part:
        start, end = span
        states: list[StateSequence | None] = []
        for group, places in enumerate(stored):
            if self.rooms[group].group.kind is not Kind.GDN:
                states.append(None)
                continue
            own = self._own(group)
            read = self._read(lease, group, start) if start == step[0] else places.get(start, own)
            kept = [(at - start, slot) for at, slot in places.items() if start < at <= end]
            if end not in places:
                kept.append((end - start, own))
            states.append(StateSequence(0, end - start, start, read, tuple(kept)))
        return Part(lease, start, end, lease.ids[start:end], tuple(states))

    def _decode_part(self, lease: Lease) -> Part:
        start, end = lease.length - 1, lease.length
        states = tuple(
            StateSequence(
                0, 1, start, self._read(lease, group, start), ((1, self.law.stores(lease, group, start, end)[-1][1]),)
            )
            if room.group.kind is Kind.GDN
            else None
            for group, room in enumerate(self.rooms)
        )
        return Part(lease, start, end, lease.ids[start:end], states)

    def _stored(self, lease: Lease, group: int, start: int, end: int) -> dict[int, int]:
        if self.rooms[group].group.kind is not Kind.GDN:
            return {}
        return dict(self.law.stores(lease, group, start, end))

    def _read(self, lease: Lease, group: int, position: int) -> int | None:
        return self.law.state(lease, group, position) if position else None

    def _slots(self, lease: Lease, group: int, first: int, end: int) -> Slots:
        """The law's places, and for positions behind the latest token the runner's own."""
        known = min(end, lease.length)
        slots = self.law.slots(lease, group, first, known)
        return slots if known == end else np.concatenate([slots, self._ahead(group, end - known)])

    def _ahead(self, group: int, count: int) -> Slots:
        """Places of the first `count` drafts."""
        return self._own(group) + np.arange(count)

    def _own(self, group: int) -> int:
        """The first slot behind the law's room; of a recurrent group, the state between two calls of one step."""
        slots = self.rooms[group].slots
        assert slots is not None
        return slots

    def _trials(self, group: int, rows: int) -> Iterator[Span]:
        """(rows done, slot) of states that are not decided yet."""
        return ((row + 1, self._own(group) + 1 + row) for row in range(rows))

    def _mask(self, start: int, end: int, first_key: int, window: int | None) -> Tensor | None:
        return extend_mask(start, end, self._dtype, self._device, first_key=first_key, window=window)

    def _tensor(self, values: Ids | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.int64)).to(self._device)
