"""What DeepInfer computes, reads, zero-fills and writes for one prompt, beside its hit.

Source: DeepInfer 0.1.0; its scheduler, block manager and prompt metadata were executed without CUDA, step by step.
Two rules replay tokens, and each has its own parameter:
- R, external replay: an injected hit of H tokens starts at v = H - R, and nothing before v is visible to the window.
  It saves H - R tokens of every layer. ASSUMPTION: the caller that chooses v is not in the release.
- K, consumer truncation (`yoco_mode`, `keep_tokens`): layers above the shared KV run for the last K positions of the
  prompt only, hit or no hit. A hit spares them work only once it starts behind L - K.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vocabulary.engine import Span

BLOCK = 128
"""Tokens per block, hard-wired; also the grain of the external store."""


class Mode(StrEnum):
    """How consumer layers treat positions below L - K."""

    OFF = "off"
    """They compute every row (the built-in default)."""
    COMPACT = "compact"
    """Rows below are left out; a chunk keeps at least one."""
    MASK = "mask"
    """Rows below are computed with an empty window."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Key and value slots of the sliding window, per state slot."""

    window: int
    """Tokens, the row's own included."""
    back: int
    """Tokens that drafts may take back: max(DEEPINFER_MAX_BACKTRACKING_TOKENS, drafts + 1)."""

    @property
    def slots(self) -> int:
        """Slots of the ring."""
        return self.window + self.back

    def slot(self, position: int) -> int:
        """Where a position's keys and values lie."""
        return position % self.slots

    def slot_spans(self, start: int, end: int) -> tuple[Span, ...]:
        """The slots of positions `[start, end)` in order, as runs; at most two."""
        if start >= end:
            return ()
        first, count = self.slot(start), end - start
        if first + count <= self.slots:
            return ((first, first + count),)
        return ((first, self.slots), (0, first + count - self.slots))


@dataclass(frozen=True, slots=True)
class Consumers:
    """Consumer truncation."""

    mode: Mode
    keep: int
    """K; 0 when off."""

    def rows(self, prompt_len: int, start: int, end: int) -> int:
        """Rows that consumer layers compute of the chunk `[start, end)`."""
        if self.mode is not Mode.COMPACT:
            return end - start
        return max(1, end - max(start, prompt_len - self.keep))

    def ring_writes(self, ring: Ring, prompt_len: int, start: int, end: int) -> int:
        """Ring slots that consumer layers write of the chunk `[start, end)`; producers write as with `OFF`."""
        first = start if self.mode is Mode.OFF else max(start, prompt_len - self.keep)
        return min(max(end - first, 0), ring.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One prefill step; counts in tokens, rows or slots."""

    start: int
    end: int
    zero_filled: int
    """Window entries in front of the chunk that lie before the valid start and are filled with zeros."""
    ring_reads: tuple[Span, ...]
    """Ring slots that fill the rest of the window, in the order of their positions."""
    first_row_keys: int
    """Keys that the first row's window sees, its own included."""
    full_window_row: int | None
    """First row, from 0, whose window is full; None: none in this chunk."""
    ring_writes: int
    """Producer layers."""
    consumer_rows: int
    consumer_ring_writes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """All that lies between a found prefix and the last prompt token."""

    prompt_len: int
    start: int
    """First position computed."""
    valid_start: int
    """v: positions before it are invisible to the window."""
    chunks: tuple[Chunk, ...]
    approximate: Span | None
    """Positions computed with a window cut at v, so that they differ from a full computation; None: none do."""
    saved_by_producers: int
    """Rows that layers below the shared KV need not compute."""
    saved_by_consumers: int
    """Rows that layers above it need not compute, against the same prompt without a hit."""


def chunk_spans(start: int, prompt_len: int, chunk_tokens: int | None, context_parallel: int = 1) -> tuple[Span, ...]:
    """Prefill steps; `chunk_tokens=None`: `chunked_prefill` is off and the tail is one step.

    With context parallelism the budget is cut to a multiple of twice its ranks.
    """
    grid = 2 * context_parallel if context_parallel > 1 else 1
    step = prompt_len if chunk_tokens is None else chunk_tokens // grid * grid
    return tuple((at, min(at + step, prompt_len)) for at in range(start, prompt_len, step))


def window_chunk(ring: Ring, consumers: Consumers, prompt_len: int, span: Span, valid_start: int) -> Chunk:
    """One step of a model with a sliding window. ValueError for a valid start behind the step, as in the engine."""
    start, end = span
    if valid_start > start:
        raise ValueError(f"valid start {valid_start} lies behind the step's start {start}")
    history = start - ring.window
    zeros = min(max(valid_start - history, 0), ring.window)
    full = max(valid_start + ring.window - 1, start)
    return Chunk(
        start=start,
        end=end,
        zero_filled=zeros,
        ring_reads=ring.slot_spans(history + zeros, start),
        first_row_keys=start - max(start - ring.window + 1, valid_start, 0) + 1,
        full_window_row=full - start if full < end else None,
        ring_writes=min(end - start, ring.slots),
        consumer_rows=consumers.rows(prompt_len, start, end),
        consumer_ring_writes=consumers.ring_writes(ring, prompt_len, start, end),
    )


def hand_over(
    ring: Ring,
    consumers: Consumers,
    prompt_len: int,
    start: int,
    *,
    valid_start: int = 0,
    chunk_tokens: int | None = None,
    context_parallel: int = 1,
) -> HandOver:
    """The whole prefill of a prompt that starts at `start`."""
    spans = chunk_spans(start, prompt_len, chunk_tokens, context_parallel)
    chunks = tuple(window_chunk(ring, consumers, prompt_len, span, valid_start) for span in spans)
    cold = sum(consumers.rows(prompt_len, *span) for span in chunk_spans(0, prompt_len, chunk_tokens, context_parallel))
    cut = min(valid_start + ring.window - 1, prompt_len)
    return HandOver(
        prompt_len=prompt_len,
        start=start,
        valid_start=valid_start,
        chunks=chunks,
        approximate=(start, cut) if valid_start and start < cut else None,
        saved_by_producers=start,
        saved_by_consumers=cold - sum(chunk.consumer_rows for chunk in chunks),
    )


def external_start(hit: int, replay: int) -> int:
    """Where computing starts, and from where the window is valid, for an external hit of `hit` tokens."""
    return max(0, hit - replay)


def compressed_entries(tokens: int, ratio: int) -> int:
    """Entries of compressed KV for `tokens` tokens: completed groups only; `ratio` divides the block."""
    if BLOCK % ratio:
        raise ValueError(f"ratio {ratio} does not divide the block of {BLOCK} tokens")
    return tokens // ratio


def state_slots(max_num_seqs: int) -> int:
    """State slots that the engine allocates: a fifth more than sequences, and one."""
    return max_num_seqs * 12 // 10 + 1
