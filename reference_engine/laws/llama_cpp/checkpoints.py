"""Context checkpoints: copies of what a slot's memory cannot go back to, taken near the end of each prompt.

Source: llama.cpp tools/server/server-context.cpp at the commit inside llama-cpp-python 0.3.36 (`create_checkpoint`,
the prompt step of `update_slots`), executed with b11549. Per slot:

    taken before a prompt batch is decoded, so never at length 0: before the batch that ends the prompt, and before one
    that ends less than n_ubatch tokens before that; batches are cut min(n_batch, 4 + n_ubatch) and min(n_batch, 4)
    tokens before the prompt's end
    when there are `n_ctx_checkpoints` - 1 or more, first those of earlier requests go that lie within
    `checkpoint_min_step` of the one before them; then the oldest; then one of equal length is replaced

The spacing at user messages needs `message_delimiters` in the request, which prompts of token IDs do not carry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reference_engine.laws.llama_cpp.memory import Snapshot
from reference_engine.laws.parts.chained import Tokens

LAST_TOKENS = 4
"""Distance of the last cut from the prompt's end; the one before it lies `n_ubatch` tokens lower."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """One copy."""

    ids: Tokens
    """The tokens it was computed from."""
    state: Snapshot
    request: object
    """Whose prompt it was taken in; compared by identity."""

    @property
    def length(self) -> int:
        """Tokens it stands behind."""
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRule:
    """The options that decide where checkpoints are taken and how long they stay."""

    limit: int
    """`n_ctx_checkpoints`; 0: none are taken."""
    min_step: int
    """`checkpoint_min_step`, in tokens."""
    n_batch: int
    """Tokens per prefill step."""
    n_ubatch: int
    """Tokens per forward."""

    def batch_end(self, start: int, prompt_len: int) -> int:
        """End of the prefill step that starts at `start`."""
        end = min(prompt_len, start + self.n_batch)
        for offset in (LAST_TOKENS + self.n_ubatch, LAST_TOKENS) if self.limit else ():
            cut = prompt_len - min(self.n_batch, offset)
            end = min(end, cut) if cut > start else end
        return end

    def due(self, start: int, end: int, prompt_len: int) -> bool:
        """Whether one is taken before the step `[start, end)`."""
        return bool(self.limit and start) and prompt_len < end + self.n_ubatch

    def added(self, kept: Iterable[Checkpoint], new: Checkpoint) -> list[Checkpoint]:
        """The slot's checkpoints after `new`."""
        before, after = list(kept), list[Checkpoint]()
        previous: int | None = None
        for number, each in enumerate(before):
            full = len(after) + len(before) - number + 1 >= self.limit
            close = previous is not None and each.length <= previous + self.min_step
            if full and close and each.request is not new.request:
                continue
            # Once the list is short enough the server stops looking, and so does `previous`: it no longer matters.
            after.append(each)
            previous = each.length
        del after[: max(0, len(after) - self.limit + 1)]
        return [each for each in after if each.length != new.length] + [new]


def newest_usable(kept: list[Checkpoint], common: int, threshold: int) -> Checkpoint | None:
    """The last one taken that lies at or below `common` and whose window reaches below `threshold`."""
    for each in reversed(kept):
        if each.state.last <= common and (each.state.first < threshold or each.state.first == 0):
            return each
    return None
