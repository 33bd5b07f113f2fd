"""Where a prefill step ends: token budget, and for recurrent layers the boundaries whose state must be kept.

Source: vLLM 0.23.0 to 0.33.0, v1/core/sched/scheduler.py (schedule, _mamba_block_aligned_split). A prompt of `length`
tokens alone in the engine; resumed requests are not covered, because a preempted request is refused.
"""

from __future__ import annotations

from typing import NamedTuple

from reference_engine.laws.vllm.plan import Plan
from reference_engine.laws.vllm.tables import checkpoint
from vocabulary.errors import LawDoesNotCover


class Step(NamedTuple):
    """What the scheduler plans."""

    start: int
    end: int
    """Of the prompt; placeholder drafts lie behind it."""
    target: int
    """End of what the model computes, drafts included."""


def prefill_step(plan: Plan, length: int, start: int, junction: int, *, first: bool) -> Step:
    """The step that starts at `start`; `first`: the request has just been admitted."""
    new = min(length - start, plan.budget)
    padded = False
    if first:
        if plan.switches.pads_drafts and plan.drafts and new == 1 and start > 0:
            room = plan.context is None or start + 1 + plan.drafts + 1 <= plan.context
            if room and 1 + plan.drafts > plan.budget:
                raise LawDoesNotCover(
                    f"{plan.switches.law_id} never schedules this prompt: its drafts exceed the budget"
                )
            padded = room
            new += plan.drafts if room else 0
    elif plan.context is not None:
        new = min(new, plan.context - start - 1)
    if plan.recurrent:
        clipped = _clip(plan, length, start, start + new, junction) - start
        if padded and clipped != new:
            clipped = 1
        new = clipped
    if new <= 0:
        raise LawDoesNotCover(
            f"{plan.switches.law_id} never schedules this prompt: no block boundary lies within "
            f"max_num_batched_tokens = {plan.budget}; raise it to {plan.split_block} or more"
        )
    return Step(start, min(start + new, length), start + new)


def decode_step(plan: Plan, known: int) -> Step:
    """The step that computes the latest of `known` tokens, and its drafts."""
    start = known - 1
    new = min(1 + plan.drafts, plan.budget)
    if plan.context is not None:
        new = min(new, plan.context - start - 1)
    return Step(start, known, start + max(new, 1))


def _clip(plan: Plan, length: int, start: int, end: int, junction: int) -> int:
    """End of a chunk, moved down to where a recurrent state must be kept."""
    if start >= length:
        return end
    switches, block = plan.switches, plan.split_block
    last_cached = _last_cached(plan, length)
    if not switches.stops_between:
        if end < last_cached:
            return start + (end - start) // block * block
        return last_cached if start < last_cached < end else end
    aligned = end // block * block
    if switches.aligns_whole_prefill:
        if end < length and (aligned > start or block <= plan.budget):
            end = aligned
    elif end < last_cached:
        end = aligned
    stops = [last_cached]
    following = (start // block + 1) * block
    if start % block and (switches.aligns_whole_prefill or following <= last_cached):
        stops.append(following)
    tail = _tail(plan, length)
    if last_cached < tail < length:
        stops.append(tail)
    if start < junction < end:
        stops.append(start + (junction - start) // block * block)
    return max(min((stop for stop in stops if start < stop < end), default=end), start)


def _last_cached(plan: Plan, length: int) -> int:
    """The last block boundary whose state a repeat can use."""
    block = plan.split_block
    if plan.switches.tail_below_last_token:
        return checkpoint(plan, length, block)
    return max(length // block * block - plan.drop * block, 0)


def _tail(plan: Plan, length: int) -> int:
    """The prompt's last boundary inside a block whose state can be kept; 0: none."""
    if not (plan.fine and plan.unit < plan.scheduler_block):
        return 0
    if plan.switches.tail_below_last_token:
        return checkpoint(plan, length, plan.unit)
    tail = length // plan.unit * plan.unit
    if tail and plan.drop and plan.switches.replay_below_drop:
        tail = max(tail - plan.unit, 0)
    return tail
