"""What lies between "found in the cache" and the first computed token, read off the calls that were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from reference_engine.call import AttentionRows, Call, StateRows
from reference_engine.laws.base import Law, Lease
from reference_engine.laws.memory import Room, Slots
from reference_engine.pools import SlotIndex
from vocabulary.engine import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTables:
    """A layer group's share of a hand-over."""

    group: str
    read: tuple[Span, ...] = ()
    """Runs of pool slots whose keys the first call read without having written them, in order of their positions."""
    written: tuple[Span, ...] = ()
    """Runs of pool slots that the prefill wrote."""
    restored: Span | None = None
    """(position, slot) of the recurrent state the first call began with; None: the empty one, or no such layers."""
    stored: tuple[Span, ...] = ()
    """(position, slot) of recurrent states the prefill left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverTables:
    """The tables behind a hand-over, as the first forward call used them; only made where they are asked for."""

    block_len: int
    """Tokens per block: the law's granule."""
    block_table: tuple[int, ...]
    """Pool block of each block of the prompt."""
    holders: tuple[int, ...]
    """Per block of the table, running requests that have it in theirs: its reference count."""
    positions: Span
    """Positions of the call's rows."""
    query_start_loc: tuple[int, ...]
    """Row borders of the requests in the call."""
    seq_len: int
    """Positions the last row attends to."""
    slot_mapping: tuple[int, ...]
    """Pool slot that each row writes."""
    read_only_blocks: int
    """Leading blocks that lie wholly in the hit."""
    read_only_unchanged: bool = False
    """Whether keys and values of all hit positions were the same bits before the first call and after the last."""
    holders_after: tuple[int, ...] = ()
    """As `holders`, when the request had got its last token."""
    groups: tuple[GroupTables, ...] = ()
    """What each layer group read and wrote, the first one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What lay between "found in the cache" and the first computed token, read off the first forward call."""

    hit_len: int
    """Tokens the law found."""
    position_start: int
    """First entry of the call's positions tensor."""
    first_query_len: int
    """Rows of the call."""
    first_key_len: int
    """Positions the call attended to, its own rows included."""
    keys_gathered: bool
    """True where the slots were scattered and had to be copied together; false: a view of the pool."""
    tables: HandOverTables | None = None
    """None unless the engine traces hand-overs."""


def hand_over(lease: Lease, first_call: Call, group: int) -> HandOver:
    """Read the hand-over off the first forward call of a request; `group` is an attention group."""
    rows = first_call.groups[group]
    assert isinstance(rows, AttentionRows)
    keys = rows.extends[0].keys
    return HandOver(
        hit_len=lease.expectation.hit_len,
        position_start=int(first_call.positions[0]),
        first_query_len=len(first_call.positions),
        first_key_len=len(_numbers(keys)),
        keys_gathered=isinstance(keys, torch.Tensor),
    )


def hand_over_tables(
    lease: Lease, first_call: Call, law: Law, leases: Sequence[Lease], group: int, rooms: Sequence[Room]
) -> HandOverTables:
    """Read the tables off a lease and its first call; `leases` are those of all running requests, its own included."""
    start, rows = int(first_call.positions[0]), len(first_call.positions)
    block_len = rooms[group].group.block or law.granule
    return HandOverTables(
        block_len=block_len,
        block_table=block_table(law, lease, group, block_len),
        holders=holders(law, lease, leases, group, block_len),
        positions=(start, start + rows),
        query_start_loc=(0, rows),
        seq_len=start + rows,
        slot_mapping=tuple(law.slots(lease, group, start, start + rows).tolist()),
        read_only_blocks=lease.expectation.hit_len // block_len,
        groups=tuple(_begun(str(room.group), rows) for room, rows in zip(rooms, first_call.groups, strict=True)),
    )


def block_table(law: Law, lease: Lease, group: int, block_len: int) -> tuple[int, ...]:
    """Blocks of the positions that surely have a slot: those computed, or all where the law takes them at once."""
    end = lease.computed_len if law.chunks_bind else lease.length
    firsts = law.slots(lease, group, 0, end)[::block_len] // block_len
    return tuple(firsts.tolist())


def holders(law: Law, lease: Lease, leases: Sequence[Lease], group: int, block_len: int) -> tuple[int, ...]:
    """How many running requests have each block of a lease in their tables."""
    tables = [set(block_table(law, each, group, block_len)) for each in leases]
    return tuple(sum(block in table for table in tables) for block in block_table(law, lease, group, block_len))


def written(groups: Sequence[GroupTables], calls: Sequence[Call], rooms: Sequence[Room]) -> tuple[GroupTables, ...]:
    """The groups with what further calls of the same request wrote and stored in the law's rooms."""
    return tuple(
        _continued(group, [call.groups[at] for call in calls], rooms[at].slots) for at, group in enumerate(groups)
    )


def _begun(group: str, rows: AttentionRows | StateRows) -> GroupTables:
    if isinstance(rows, AttentionRows):
        extend = rows.extends[0]
        return GroupTables(group=group, read=_runs(_numbers(extend.keys)[: extend.start - extend.first_key]))
    sequence = rows.batch.sequences[0]
    restored = None if sequence.read_slot is None else (sequence.position, sequence.read_slot)
    return GroupTables(group=group, restored=restored)


def _continued(group: GroupTables, calls: Sequence[AttentionRows | StateRows], limit: int | None) -> GroupTables:
    runs, stored = list(group.written), list(group.stored)
    for rows in calls:
        if isinstance(rows, AttentionRows):
            runs += _runs(_numbers(rows.slots))
        else:
            sequence = rows.batch.sequences[0]
            kept = [(done, slot) for done, slot in sequence.stores if limit is None or slot < limit]
            stored += [(sequence.position + done, slot) for done, slot in kept]
    return replace(group, written=tuple(runs), stored=tuple(stored))


def _numbers(index: SlotIndex) -> Slots:
    if isinstance(index, slice):
        return np.arange(index.start, index.stop)
    numbers: Slots = index.cpu().numpy()
    return numbers


def _runs(slots: Slots) -> tuple[Span, ...]:
    """Consecutive slots as half-open runs, in the order given."""
    if not len(slots):
        return ()
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(slots, cuts))
