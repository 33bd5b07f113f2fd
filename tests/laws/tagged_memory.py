"""An engine without a model: it writes down, place by place, what a real one would have computed there.

A place of an attention group holds a mark of the position and of all tokens up to it; a place of a recurrent group
holds the mark of a whole prefix. Whatever a call reads must carry the marks that a cold run of the same prompt would
have put there: anything else is a stale, shared or missing place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reference_engine.laws.base import Expectation, Law, Lease
from vocabulary.engine import TokenRequest
from vocabulary.groups import Kind

UNLIMITED = 1 << 18
"""Places of a group whose law knows no limit."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What lies in a place."""

    position: int
    token: int
    prefix: int
    """Hash of the namespace and of all tokens up to the position."""


class TaggedMemory:
    """Serves requests under a law, one at a time or step by step, and checks everything that is read."""

    def __init__(self, law: Law) -> None:
        self.law = law
        law.moves.followed = True
        self.groups = [room.group for room in law.rooms]
        assert self.groups, f"{law.id} cannot be followed"
        self._marked: dict[Lease, list[Mark]] = {}
        self.pools: list[list[Mark | None]] = [[None] * (room.slots or UNLIMITED) for room in law.rooms]

    def serve(self, request: TokenRequest, output: Sequence[int] = ()) -> Expectation:
        """Prefill in the law's steps, decode token by token, release; AssertionError for a wrong place."""
        *_, expectation = self.steps(request, output)
        return expectation

    def steps(self, request: TokenRequest, output: Sequence[int] = ()) -> Iterator[Expectation]:
        """The same, in parts between which other requests may go on: after admission, and after every call."""
        lease = self.law.admit(request)
        try:
            yield from self._admitted(lease, output)
        finally:
            self.law.release(lease)
            self._marked.pop(lease, None)
            self._move()
            self.law.check_integrity()

    def _admitted(self, lease: Lease, output: Sequence[int]) -> Iterator[Expectation]:
        law, request = self.law, lease.request
        self._move()
        if lease.expectation.approximate_len == 0 and lease.expectation.backed_len is None:
            self._check_hit(lease)
        yield lease.expectation
        while lease.computed_len < request.prompt_len:
            start, end = lease.computed_len, law.chunk_end(lease)
            self._call(lease, start, end)
            law.computed(lease, end)
            self._move()
            yield lease.expectation
        for token_id in output:
            law.append(lease, token_id)
            self._move()
            if token_id is not output[-1] or lease.length < request.prompt_len + len(output):
                self._call(lease, lease.length - 1, lease.length)
                law.computed(lease, lease.length)
                self._move()
                yield lease.expectation

    def reset(self) -> None:
        """Forget the law's cache; the places keep what they hold."""
        self.law.reset()
        self._move()

    def _call(self, lease: Lease, start: int, end: int) -> None:
        self._move()
        marks = self._marks(lease, end)
        whole = end <= lease.request.prompt_len or end == len(lease.ids) - 1  # decodes in between: the newest is enough
        for number, group in enumerate(self.groups):
            pool = self.pools[number]
            if group.kind is Kind.GDN:
                if start:
                    place = self.law.state(lease, number, start)
                    unbacked = lease.expectation.backed_len is not None and start == lease.expectation.hit_len
                    assert unbacked or pool[place] == marks[start - 1], f"{group}: state behind {start}: {pool[place]}"
                stores = self.law.stores(lease, number, start, end)
                assert stores and stores[-1][0] == end, f"{group}: stores {stores} of [{start}, {end})"
                assert [at for at, _ in stores] == sorted({at for at, _ in stores}), f"{group}: stores {stores}"
                for position, place in stores:
                    assert start < position <= end and 0 <= place < len(pool), f"{group}: store {position} at {place}"
                    pool[place] = marks[position - 1]
                continue
            first = 0 if group.window is None else max(lease.valid_from, start - group.window + 1, 0)
            places = self.law.slots(lease, number, first, end)
            assert len(set(places.tolist())) == end - first, f"{group}: a place twice in [{first}, {end})"
            assert places.min() >= 0 and places.max() < len(pool), f"{group}: places {places} of {len(pool)}"
            for position, place in zip(range(start, end), places[start - first :].tolist(), strict=True):
                pool[place] = marks[position]
            for position, place in zip(range(first, end), places.tolist(), strict=True) if whole else ():
                self._check(lease, group.window, position, pool[place], marks[position])

    def _check(self, lease: Lease, window: int | None, position: int, found: Mark | None, wanted: Mark) -> None:
        expectation = lease.expectation
        if expectation.approximate_len and position < expectation.hit_len:
            assert found is not None and (found.position, found.token) == (wanted.position, wanted.token), position
        elif expectation.backed_len is None or position < expectation.backed_len or position >= expectation.hit_len:
            assert found == wanted, f"position {position} (window {window}): {found}, wanted {wanted}"

    def _check_hit(self, lease: Lease) -> None:
        """All of the hit, not only what the first call will read."""
        start = lease.expectation.position_start
        if not start:
            return
        marks = self._marks(lease, start)
        for number, group in enumerate(self.groups):
            if group.kind is Kind.FULL:
                for position, place in enumerate(self.law.slots(lease, number, 0, start).tolist()):
                    assert self.pools[number][place] == marks[position], f"{group}: position {position} of the hit"

    def _move(self) -> None:
        for move in self.law.moves.drain():
            pool = self.pools[move.group]
            held = [pool[place] for place in move.source.tolist()]
            for mark, place in zip(held, move.target.tolist(), strict=True):
                # A block that is not full yet moves with its empty places.
                pool[place] = mark and Mark(mark.position + move.turn, mark.token, mark.prefix)

    def _marks(self, lease: Lease, end: int) -> list[Mark]:
        """Marks of at least `[0, end)`."""
        marks = self._marked.setdefault(lease, [])
        prefix = marks[-1].prefix if marks else hash((lease.request.namespace, lease.request.lora))
        for position in range(len(marks), end):
            token = int(lease.ids[position])
            prefix = hash((prefix, token))
            marks.append(Mark(position, token, prefix))
        return marks
