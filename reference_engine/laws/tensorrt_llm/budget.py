"""V1's two stages: what the scheduler estimates as reusable before a request is admitted, and what admission finds.

Stage 1, scheduling, counts whole blocks of a search that holds nothing, twice:
    block budget   only blocks that a running request holds: an unused one leaves the free pool when it is reused
    token budget   all stored blocks (PR 15066, 2026-06; before it the MAX_UTILIZATION policy counted held ones here
                   too and so let about one context request through per step)
Stage 2, before admission (KVCacheManager.prepare_resources, 2026), searches again; a first chunk whose cost no longer
fits `max_num_tokens` waits for the next step, because blocks may have gone in between.
Stage 3, admission, also reuses a part of a block, and so finds up to t-1 tokens more than the estimate.

With windows of several sizes there is no estimate: the search refuses them and the probe answers 0.
Source: resource_manager.py and its test of the guard, kvCacheManager.cpp, pull requests 11637 and 15066; read only.
ASSUMPTION: a first chunk that is not the last one costs its own length; the cut to a block border is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reference_engine.laws.tensorrt_llm.v1 import TrtllmV1
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Stage 1 for one request."""

    reusable_blocks_all: int
    """Leading whole blocks that are stored."""
    reusable_blocks_allocated: int
    """Those of them that a running request holds."""
    tokens: int
    """What the token budget credits."""


def estimate(law: TrtllmV1, request: TokenRequest, *, credit_unused: bool = True) -> Estimate:
    """The scheduler's view of a waiting request; `credit_unused=False` is the token budget before PR 15066.

    Raises LawDoesNotCover with windows of several sizes.
    """
    if len(law.windows) > 1:
        raise LawDoesNotCover(f"{law.id}: no estimate for windows of several sizes: {', '.join(law.windows)}")
    blocks = law.findable_blocks(request, next(iter(law.windows))) if law.enabled else ()
    held = sum(block.references > 0 for block in blocks)
    credited = len(blocks) if credit_unused else held
    return Estimate(reusable_blocks_all=len(blocks), reusable_blocks_allocated=held, tokens=credited * law.granule)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstChunk:
    """A context request about to be admitted; all in tokens."""

    prompt_len: int
    chunk_tokens: int
    """What the scheduler gave it in this step."""
    reusable_tokens: int
    """By the search of stage 2."""

    @property
    def cost(self) -> int:
        """Tokens it adds to the forward call; at least 1."""
        if self.reusable_tokens + self.chunk_tokens >= self.prompt_len:
            return max(1, self.prompt_len - self.reusable_tokens)
        return self.chunk_tokens


def admitted(max_num_tokens: int, already: int, waiting: Sequence[FirstChunk]) -> tuple[bool, ...]:
    """Stage 2: who is admitted, in order; `already` are tokens of decoding requests, drafts and later chunks.

    One that does not fit is passed over and the next one is still tried.
    """
    left, answers = max_num_tokens - already, []
    for chunk in waiting:
        fits = chunk.cost <= left
        left -= chunk.cost if fits else 0
        answers.append(fits)
    return tuple(answers)
