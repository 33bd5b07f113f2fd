"""Greedy speculative decoding with the model's own drafting head: guess, verify, keep what was right.

A step computes the latest token and the guesses behind it in one call. Guess i is right where it is the most likely
token behind the ones before it; the first wrong one is replaced by the right token, so the output is that of plain
greedy decoding (up to the rounding of a call of several rows). Keys and recurrent states of guesses lie in slots of the
runner's own until the step is decided: what a law hands out only ever holds what was right, so every law can draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reference_engine.request import Running
from reference_engine.runner import Runner


class Speculation:
    """Drafting for the requests of one engine."""

    def __init__(self, runner: Runner, drafts: int) -> None:
        self.runner, self.drafts = runner, drafts

    def prefilled(self, running: Running, start: int, hidden: Tensor, *, whole: bool) -> Tensor:
        """A prefill step left `hidden` `[n, hidden]`; logits `[1, vocab]` of its last row.

        The head follows at once, except behind the prompt's end, where the next token is not chosen yet.
        """
        running.pending = (start, hidden)
        if not whole:
            self._follow(running)
        return self.runner.logits(hidden[-1:])

    def step(self, running: Running) -> list[int]:
        """Verify the guesses; the tokens that the step chose, at least one."""
        lease = running.lease
        start, drafts = lease.length - 1, running.drafts
        logits, hidden = self.runner.verify(lease, drafts)
        best: list[int] = logits.argmax(dim=-1).tolist()
        right = next(
            (i for i, (guess, token) in enumerate(zip(drafts, best, strict=False)) if guess != token), len(drafts)
        )
        chosen = best[: right + 1]
        self.runner.keep(lease, start, start + len(chosen))
        running.pending = (start, hidden[: len(chosen)])
        running.accepted += right
        return chosen

    def propose(self, running: Running) -> None:
        """Guess what comes behind the tokens known now; no more than the request still asks for."""
        wanted = min(self.drafts, running.request.max_tokens - len(running.output_ids) - 1)
        guess, hidden = self._follow(running)
        running.drafts = [guess][:wanted]
        while len(running.drafts) < wanted:
            position = running.lease.length - 2 + len(running.drafts)
            guess, hidden = self.runner.draft(running.lease, position, running.drafts[-1:], hidden)
            running.drafts.append(guess)
        running.drafted += len(running.drafts)

    def _follow(self, running: Running) -> tuple[int, Tensor]:
        """Run the head over the rows that it has not seen; their next tokens are known."""
        assert running.pending is not None
        start, hidden = running.pending
        behind: Sequence[int] = running.lease.ids[start + 1 : start + 1 + len(hidden)].tolist()
        running.pending = None
        return self.runner.draft(running.lease, start, behind, hidden)
