"""The recurrent operations in plain torch: products over whole chunks, one short loop from chunk to chunk.

    state = exp(gate) state;   state += key (beta (value - key . state));   out = query . state

Within a chunk this is a unit lower triangular system, solved for all chunks at once; between chunks only the state is
carried. Chunks end at absolute multiples of `CHUNK` and wherever a state is asked for, so that a sequence resumed at a
multiple takes the steps of a cold one (bit-equal, if the calls end at the same places too); a state stored elsewhere
splits its chunk, and what follows rounds differently. Method: Yang et al., "Gated Delta Networks", arXiv 2412.06464.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from reference_engine.kernels.delta import DeltaRows
from reference_engine.kernels.shapes import StateBatch, StateSequence

CHUNK = 64
"""Tokens; transformers and the engines use the same."""


def conv1d(rows: Tensor, weight: Tensor, states: Tensor, batch: StateBatch) -> Tensor:
    """As `Kernels.conv1d`; operands as there."""
    made, plan = torch.empty_like(rows), _plan(batch)
    width = len(weight)
    before = states[plan.read_slot] * plan.has_state[:, None, None].to(states.dtype)  # [sequences, width - 1, channels]
    for index, each in enumerate(batch.sequences):
        own = slice(each.first_row, each.first_row + each.row_count)
        inputs = torch.cat([before[index], rows[own]])
        mixed = inputs[: each.row_count] * weight[0]
        for tap in range(1, width):
            mixed = torch.addcmul(mixed, inputs[tap : tap + each.row_count], weight[tap])
        made[own] = silu(mixed)
        for done, slot in each.stores:
            states[slot] = inputs[done : done + width - 1]
    return made


def gated_delta_rule(operands: DeltaRows, batch: StateBatch) -> Tensor:
    """As `Kernels.delta_chunk`, storing states after any row."""
    plan = _plan(batch)
    group = operands.values.shape[1] // operands.queries.shape[1]
    queries, keys, values = (plan.cut(each) for each in (operands.queries, operands.keys, operands.values))
    queries, keys = (each.repeat_interleave(group, 1) if group > 1 else each for each in (queries, keys))
    gates, betas = (plan.cut(each[..., None]) for each in (operands.gates, operands.betas))
    decay = gates.cumsum(-2)  # [sequences, heads, pieces, length, 1], from the piece's begin
    total = decay[..., -1:, :]
    pairwise = (decay - decay.mT).masked_fill(plan.later, -torch.inf).exp()
    weak_keys = keys * betas
    system = (weak_keys @ keys.mT) * pairwise
    known = torch.cat([values * betas, weak_keys * decay.exp()], dim=-1)
    solved = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    changes, reads = solved.split([values.shape[-1], keys.shape[-1]], dim=-1)
    inner = (queries @ keys.mT) * pairwise
    queries, keys, total = queries * decay.exp(), (keys * (total - decay).exp()).mT, total.exp()
    state = operands.states[plan.read_slot] * plan.has_state[:, None, None, None]
    made = torch.empty_like(changes)
    for piece, (sequences, slots) in enumerate(plan.stores):
        change = changes[:, :, piece] - reads[:, :, piece] @ state
        made[:, :, piece] = queries[:, :, piece] @ state + inner[:, :, piece] @ change
        state = state * total[:, :, piece] + keys[:, :, piece] @ change
        if slots is not None:
            operands.states[slots] = state[sequences]
    return plan.joined(made).to(operands.values.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """How a batch's rows are cut into pieces of equal length; filled up with rows that change nothing."""

    rows: Tensor  # [sequences, pieces, length]: row of each place, one past the last row where there is none
    places: Tensor  # [rows]: place of each row
    later: Tensor  # [length, length]: the column lies behind the row
    read_slot: Tensor  # [sequences]
    has_state: Tensor  # [sequences] fp32
    stores: tuple[tuple[Tensor | None, Tensor | None], ...]
    """Per piece: which sequences store their state behind it, and where."""

    def cut(self, rows: Tensor) -> Tensor:
        """`[rows, heads, d]` to fp32 `[sequences, heads, pieces, length, d]`."""
        return pad(rows.float(), (0, 0, 0, 0, 0, 1))[self.rows].permute(0, 3, 1, 2, 4).contiguous()

    def joined(self, pieces: Tensor) -> Tensor:
        """The inverse of `cut`."""
        return pieces.permute(0, 2, 3, 1, 4).flatten(0, 2)[self.places]


@lru_cache(maxsize=8)
def _plan(batch: StateBatch) -> _Plan:
    device = batch.first_row.device
    cuts = [_pieces(each) for each in batch.sequences]
    pieces, length = max(map(len, cuts)), max(end - begin for cut in cuts for begin, end in cut)
    rows = torch.full((len(cuts), pieces, length), batch.rows)
    places = torch.empty(batch.rows, dtype=torch.int64)
    stores: list[list[tuple[int, int]]] = [[] for _ in range(pieces)]
    for index, (sequence, cut) in enumerate(zip(batch.sequences, cuts, strict=True)):
        slots = dict(sequence.stores)
        for piece, (begin, end) in enumerate(cut):
            own = torch.arange(sequence.first_row + begin, sequence.first_row + end)
            rows[index, piece, : end - begin] = own
            places[own] = torch.arange(end - begin) + (index * pieces + piece) * length
            if end in slots:
                stores[piece].append((index, slots[end]))
    columns = [torch.tensor(each, device=device).unbind(-1) if each else (None, None) for each in stores]
    return _Plan(
        rows=rows.to(device),
        places=places.to(device),
        later=torch.ones(length, length, dtype=torch.bool, device=device).triu_(1),
        read_slot=batch.read_slot.long(),
        has_state=batch.has_state.float(),
        stores=tuple((sequences, slots) for sequences, slots in columns),
    )


def _pieces(sequence: StateSequence) -> list[tuple[int, int]]:
    """Rows `[begin, end)` of each piece, counted from the sequence's first."""
    first = CHUNK - sequence.position % CHUNK
    ends = {*range(first, sequence.row_count, CHUNK), *(done for done, _ in sequence.stores), sequence.row_count}
    cuts = sorted(ends)
    return list(zip([0, *cuts[:-1]], cuts, strict=True))
