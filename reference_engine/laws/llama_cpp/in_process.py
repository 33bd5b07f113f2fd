"""llama-cpp-python: one context, one sequence, and a prefix rule of its own in Python.

Source: llama-cpp-python 0.3.36, `Llama.generate` and `Llama.eval`, executed.

    the context holds exactly the prompt    nothing is computed, its logits are still there: hit L
    it begins with the whole prompt         hit L-1
    otherwise                               hit = common prefix
    a recurrent state is refused a cut      hit 0, unless the prompt goes on exactly behind the context

- Window layers without `swa_full` are never refused a cut, though they may have dropped what the first new token must
  see. Then the hit stands and the engine computes on a window with a hole: `backed_len` is 0, as no shorter hit would
  find its window whole either. An engine that follows this law finds the hole as `Lease.valid_from`.
- Prefill steps have `n_batch` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.laws.base import Expectation, Ids, Law, Lease, PoolExhausted
from reference_engine.laws.llama_cpp.memory import (
    FullMemory,
    Memory,
    RecurrentMemory,
    WindowCells,
    WindowMemory,
    window_cells,
)
from reference_engine.laws.llama_cpp.places import Layout, Store
from reference_engine.laws.llama_cpp.slots import NO_IDS
from reference_engine.laws.memory import Room, Slots
from reference_engine.laws.parts.history import History, common_prefix
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import Kind, LayerGroup
from vocabulary.ledger import Cause, Ledger

FULL = LayerGroup(Kind.FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """Options of `llama_cpp.Llama`, by its own names."""

    groups: tuple[LayerGroup, ...] = (FULL,)
    n_ctx: int | None = None
    """Tokens of the context; None: no limit (prediction only)."""
    n_batch: int = 512
    n_ubatch: int = 512
    swa_full: bool = True

    @property
    def window(self) -> int | None:
        """Window in tokens of layers that drop what lies behind it."""
        if self.swa_full:
            return None
        return next((group.window for group in self.groups if group.kind is Kind.SWA), None)

    @property
    def recurrent(self) -> bool:
        """Whether some layers keep one state only."""
        return any(group.kind is Kind.GDN for group in self.groups)

    def memory(self) -> Memory:
        """An empty context's."""
        if self.recurrent:
            return RecurrentMemory()
        if self.window is None:
            return FullMemory()
        return WindowMemory(WindowCells(self.window_cells, self.window, self.n_ubatch), 0)

    @property
    def window_cells(self) -> int:
        """Cells of the window layers."""
        assert self.window is not None
        return window_cells(self.window, self.n_ubatch, most=self.n_ctx)

    def layout(self) -> Layout:
        """Places; none without a limit."""
        windows = None if self.window is None or self.n_ctx is None else self.window_cells + self.n_batch
        return Layout(groups=self.groups, cells=self.n_ctx or 0, window_cells=windows)


class LlamaCppPython(Law):
    """One context of llama-cpp-python."""

    id = "llama-cpp-python@0.3"
    granule = 1
    caps_last_token = False
    can_salt = False

    def __init__(self, options: ContextOptions = ContextOptions()) -> None:
        """An empty context."""
        super().__init__()
        self.options = options
        self.pool_tokens = options.n_ctx
        self.chunks_bind = options.window is not None or options.recurrent
        self._lease: Lease | None = None
        self._clear()
        if options.n_ctx is None:
            self.rooms = tuple(Room(group, None) for group in options.groups)
        else:
            self.rooms = self._store.rooms(options.groups)

    def admit(self, request: TokenRequest) -> Lease:
        """Cut the context back to what the prompt shares with it."""
        ids = request.array
        if self._lease is not None:
            raise PoolExhausted("the context is busy")
        if self.options.n_ctx is not None and len(ids) + request.max_tokens > self.options.n_ctx:
            raise PoolExhausted(f"{len(ids)} + {request.max_tokens} tokens exceed a context of {self.options.n_ctx}")
        self._lease = lease = Lease(request, self._take(ids))
        lease.held = self._places
        if lease.expectation.backed_len is not None:
            first = self._memory.first
            lease.valid_from = lease.expectation.hit_len if first is None else first
        return lease

    def chunk_end(self, lease: Lease) -> int:
        """`n_batch` tokens on."""
        return min(lease.computed_len + self.options.n_batch, lease.request.prompt_len)

    def computed(self, lease: Lease, end: int) -> None:
        """A prefill step, or generated tokens one by one."""
        step_end = min(end, lease.request.prompt_len)
        if lease.computed_len < step_end:
            self._memory.decode(lease.computed_len, step_end)
        for position in range(max(lease.computed_len, step_end), end):
            self._memory.decode(position, position + 1)
        lease.computed_len = max(lease.computed_len, end)
        self._tokens = lease.ids[: lease.computed_len]
        if self.options.window is not None and (first := self._memory.first) is not None:
            self._places.window.drop_below(first)

    def slots(self, lease: Lease, group: int, start: int, end: int) -> Slots:
        """As `Law.slots`; positions that are asked for the first time get their places now."""
        if self.options.n_ctx is None:
            raise LawDoesNotCover(f"{self.id}: an engine needs places in number; set n_ctx")
        return self._store.at(self._places, group, start, end)

    def state(self, lease: Lease, group: int, position: int) -> int:
        """As `Law.state`: there is one."""
        return self._places.state

    def stores(self, lease: Lease, group: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """As `Law.stores`: only the last one."""
        self._stored = end
        return super().stores(lease, group, start, end)

    def append(self, lease: Lease, token_id: int) -> None:
        """The next cell."""
        lease.push(token_id)

    def release(self, lease: Lease) -> None:
        """The context keeps its tokens."""
        self._history.add(lease.ids[: lease.computed_len])
        if self._stored > lease.computed_len:  # given up within a step that has overwritten the state
            self._tokens = NO_IDS
            self._memory.cut(0)
        self._places.cut(len(self._tokens))
        self._lease = None

    def reset(self) -> None:
        """An empty context."""
        assert self._lease is None, "reset while a request runs"
        self._clear()

    def check_integrity(self) -> None:
        """Tokens, memory and places end at the same position."""
        last = self._memory.last
        assert len(self._tokens) == (0 if last is None else last + 1), f"{len(self._tokens)} tokens, memory to {last}"
        if self.moves.followed and self._lease is None:
            self._store.check_held(self._places, self._memory.first, len(self._tokens))
        self._store.check(())

    def _clear(self) -> None:
        self._memory, self._tokens, self._history = self.options.memory(), NO_IDS, History()
        self._store = Store(self.options.layout(), self.moves)
        (self._places,) = self._store.sequences

    def _take(self, ids: Ids) -> Expectation:
        length, held = len(ids), len(self._tokens)
        common = common_prefix(self._tokens, ids)
        exact = common == length == held
        hit = length if exact else min(common, length - 1)
        refused = self.options.recurrent and not exact and hit < held
        allowed, hit = hit, 0 if refused else hit
        backed = self._backed(hit)
        self._tokens = self._tokens[:hit]
        self._memory.cut(hit)
        self._places.cut(hit)
        self._stored = 0
        ledger = Ledger.waterfall(
            length,
            [
                (Cause.NOVEL, max(self._history.lcp(ids), common)),
                (Cause.LAST_TOKEN, length if exact else length - 1),
                (Cause.EVICTED, allowed),
                (Cause.NO_STATE, hit),
            ],
        )
        full = self.options.window is None and not self.options.recurrent
        return Expectation(
            hit_len=hit,
            position_start=hit,
            ledger=ledger,
            per_group={
                str(group): allowed if group.kind is Kind.FULL or full else hit if backed is None else backed
                for group in self.options.groups
            },
            junction=hit,
            backed_len=backed,
        )

    def _backed(self, hit: int) -> int | None:
        """None where the window of the first new token is whole."""
        first = self._memory.first
        if self.options.window is None or not hit or first is None:
            return None
        return None if first <= max(0, hit - self.options.window + 1) else 0
