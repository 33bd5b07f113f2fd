"""Synthetic traffic: sessions over shared system prompts and documents, with turns, tool calls and arrival times.

    session   [ system prompt ][ document? ][ user ]                       -> answer
              [ system prompt ][ document? ][ user ][ answer ][ tool's ]   -> answer      (at once)
              [ ...                                          ][ user ]     -> answer      (after thinking)

System prompts and documents are shared among sessions, the popular ones often (Zipf). Everything follows from the seed.
Memory: the sessions that are open at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from vocabulary.errors import UsageError
from workloads.traces.stretches import Numbers, Stretch, length

SECOND = 1_000_000_000
TRIAL_REQUESTS = 20_000
"""Requests drawn to see how long prompts are before lengths are scaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What the traffic is like; lengths are medians of log-normal distributions, in tokens."""

    requests: int = 1000
    seed: int = 0
    mean_len: int | None = None
    """Aimed-at mean prompt length: all lengths are scaled to it. None: as they are."""
    systems: int = 8
    """System prompts (with their tools)."""
    system_len: int = 1500
    documents: int = 200
    document_len: int = 6000
    document_share: float = 0.4
    """Share of sessions that read a document."""
    turns: float = 4.0
    """Mean requests of a session (geometric)."""
    user_len: int = 120
    answer_len: int = 250
    tool_share: float = 0.3
    """Share of requests after the first that carry a tool's result in place of a user's words."""
    tool_len: int = 900
    sessions_per_s: float = 1.0
    think_s: float = 20.0
    """Mean time between an answer and the user's next words; a tool answers within a second."""

    def __post_init__(self) -> None:
        for name, value in (("requests", self.requests), ("systems", self.systems), ("documents", self.documents)):
            if value < 1:
                raise UsageError(f"{name} is {value}; at least 1 is needed")
        for name, share in (("document share", self.document_share), ("tool share", self.tool_share)):
            if not 0 <= share <= 1:
                raise UsageError(f"the {name} is {share}; it lies between 0 and 1")
        if self.turns < 1 or self.sessions_per_s <= 0 or self.think_s < 0:
            raise UsageError(
                "a session has at least one turn, sessions come at a positive rate, and nobody thinks back"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One request; numbers stand for tokens, the same number for the same prefix."""

    arrival_ns: int
    session: int
    turn: int
    """From 1."""
    prompt: tuple[Stretch, ...]
    kept_len: int
    """Tokens of the prompt that the session's last prompt and answer began with."""
    output_len: int

    @property
    def input_len(self) -> int:
        """Tokens in the prompt."""
        return length(self.prompt)


@dataclass(slots=True)
class _Session:
    number: int
    left: int
    sequence: tuple[Stretch, ...]
    turn: int = 0


def generate(traffic: Traffic) -> Iterator[Generated]:
    """Requests in the order of their arrival."""
    if traffic.mean_len is None:
        return islice(_stream(traffic, 1.0), traffic.requests)
    trial = [request.input_len for request in islice(_stream(traffic, 1.0), min(TRIAL_REQUESTS, traffic.requests))]
    return islice(_stream(traffic, traffic.mean_len / float(np.mean(trial))), traffic.requests)


def _stream(traffic: Traffic, scale: float) -> Iterator[Generated]:
    rng = np.random.default_rng(traffic.seed)
    numbers = Numbers()
    systems, documents = _Popular(traffic.systems), _Popular(traffic.documents)
    system_lens = [_drawn(rng, traffic.system_len * scale) for _ in range(traffic.systems)]
    document_lens = [_drawn(rng, traffic.document_len * scale) for _ in range(traffic.documents)]
    shared: dict[tuple[int, int | None], tuple[Stretch, ...]] = {}
    open_sessions: list[tuple[int, int, _Session]] = []
    next_start, count = 0, 0
    while True:
        while not open_sessions or next_start <= open_sessions[0][0]:
            system = systems.draw(rng)
            document = documents.draw(rng) if rng.random() < traffic.document_share else None
            beginning = _shared(shared, numbers, (system, None), (), system_lens[system])
            if document is not None:
                beginning = _shared(shared, numbers, (system, document), beginning, document_lens[document])
            session = _Session(number=count, left=int(rng.geometric(1 / traffic.turns)), sequence=beginning)
            heapq.heappush(open_sessions, (next_start, count, session))
            count += 1
            next_start += round(rng.exponential(SECOND / traffic.sessions_per_s))
        now, order, session = heapq.heappop(open_sessions)
        tool = session.turn > 0 and rng.random() < traffic.tool_share
        added = _drawn(rng, (traffic.tool_len if tool else traffic.user_len) * scale)
        output_len = _drawn(rng, traffic.answer_len * scale)
        kept_len = length(session.sequence) if session.turn else 0
        prompt = session.sequence + numbers.take(added)
        session.turn += 1
        session.left -= 1
        yield Generated(
            arrival_ns=now,
            session=session.number,
            turn=session.turn,
            prompt=prompt,
            kept_len=kept_len,
            output_len=output_len,
        )
        if session.left:
            session.sequence = prompt + numbers.take(output_len)
            pause_s = rng.exponential(0.5 if tool else traffic.think_s)
            heapq.heappush(open_sessions, (now + round((pause_s + output_len / 50) * SECOND), order, session))


def _shared(
    shared: dict[tuple[int, int | None], tuple[Stretch, ...]],
    numbers: Numbers,
    name: tuple[int, int | None],
    before: tuple[Stretch, ...],
    tokens: int,
) -> tuple[Stretch, ...]:
    """A system prompt, or a document behind one: a document behind another prompt is another prefix."""
    if name not in shared:
        shared[name] = before + numbers.take(tokens)
    return shared[name]


def _drawn(rng: np.random.Generator, median: float) -> int:
    """A length, log-normal with the usual long tail of prompts, at least 1."""
    return max(1, round(median * float(rng.lognormal(0.0, 0.8))))


class _Popular:
    """Draws one of `count` by Zipf's law: the first most often."""

    def __init__(self, count: int) -> None:
        weights = np.cumsum(1.0 / np.arange(1, count + 1))
        self._ends = weights / weights[-1]

    def draw(self, rng: np.random.Generator) -> int:
        return int(np.searchsorted(self._ends, rng.random(), side="right"))
