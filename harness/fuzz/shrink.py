"""The smallest sequence that still differs: delta debugging on requests, then on runs of IDs, then on extras.

Taking an ID out of every prompt and output at once keeps what prompts share, so relations survive while lengths shrink.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from harness.cases.format import Case, CaseRequest
from harness.cases.tokens import Tokens
from vocabulary.groups import parse_groups

MOST_TRIALS = 1500
Run = tuple[int, int]


class _Spent(Exception):
    """No trial is left."""


class Shrinker:
    """Shrinks one case; `fails` says whether a case still differs."""

    def __init__(self, fails: Callable[[Case], bool], *, trials: int = MOST_TRIALS) -> None:
        self._fails, self._left = fails, trials

    def shrink(self, case: Case) -> Case:
        """A case that fails and from which nothing more can be taken, as far as the trials reach."""
        self._best = case
        try:
            while True:
                before = self._best
                self._requests()
                self._runs()
                self._extras()
                if self._best == before:
                    return self._best
        except _Spent:
            return self._best

    def _holds(self, case: Case | None) -> bool:
        if case is None or case == self._best:
            return False
        if not self._left:
            raise _Spent
        self._left -= 1
        if not self._fails(case):
            return False
        self._best = case
        return True

    def _requests(self) -> None:
        """Requests one needs, by halves, quarters and so on."""
        size = len(self._best.requests)
        while size >= 1:
            at = 0
            while at < len(self._best.requests):
                kept = self._best.requests[:at] + self._best.requests[at + size :]
                if not self._holds(_with(self._best, kept)):
                    at += size
            size //= 2

    def _runs(self) -> None:
        """IDs one needs: pieces of runs, by powers of two and by whole blocks, large ones first.

        What fails is often a multiple of a block; only whole blocks can then be taken out.
        """
        longest = max((stop - start for start, stop in runs_of(self._best)), default=0)
        blocks = {group.block for group in parse_groups(self._best.groups) if group.block}
        sizes = {1 << power for power in range(longest.bit_length())} | {longest} | blocks
        for size in sorted(sizes - {0}, reverse=True):
            for start, stop in runs_of(self._best):
                high = stop
                while high - size >= start:
                    # From the end of a run: prompts lose their tails first.
                    self._holds(_without(self._best, high - size, high))
                    high -= size

    def _extras(self) -> None:
        """Outputs, namespaces, adapters and features one needs."""
        for change in ({"output": None}, {"namespace": None}, {"lora": None}, {"features": ()}):
            for at in range(len(self._best.requests)):
                request = self._best.requests[at].model_copy(update=change)
                kept = (*self._best.requests[:at], request, *self._best.requests[at + 1 :])
                self._holds(_with(self._best, kept))


def runs_of(case: Case) -> list[Run]:
    """Runs of IDs that are never parted: IDs of one run occur in the same prompts and outputs, side by side."""
    cuts: set[int] = set()
    covered: list[Run] = []
    for tokens in _sequences(case.requests):
        for start, stop in tokens.ranges:
            cuts |= {start, stop}
            covered.append((start, stop))
    bounds = sorted(cuts)
    return [
        (low, high)
        for low, high in itertools.pairwise(bounds)
        if any(start <= low and high <= stop for start, stop in covered)
    ]


def _sequences(requests: Sequence[CaseRequest]) -> list[Tokens]:
    prompts = [request.prompt for request in requests]
    return prompts + [request.output for request in requests if request.output is not None]


def _with(case: Case, requests: Sequence[CaseRequest]) -> Case | None:
    return case.model_copy(update={"requests": tuple(requests)}) if requests else None


def _without(case: Case, low: int, high: int) -> Case | None:
    """The case without the IDs `[low, high)`; None where a prompt or an output would be left empty."""
    requests = []
    for request in case.requests:
        prompt = request.prompt.without(low, high)
        output = None if request.output is None else request.output.without(low, high)
        if not prompt.ranges or (output is not None and not output.ranges):
            return None
        requests.append(request.model_copy(update={"prompt": prompt, "output": output}))
    return _with(case, requests)
