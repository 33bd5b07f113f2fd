"""llama-server's slot log at its usual verbosity: prompt lengths, what each slot shared with them, what was kept.

    I slot get_availabl: id  1 | task -1 |  - checking sim = 0.556 (50/90) > 0.100
    I slot get_availabl: id  1 | task -1 | selected slot by LCP similarity, f_sim_best = 0.556 (> 0.100 thold), ...
    I slot   operator(): id  1 | task 14 | new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 90
    I slot   operator(): id  1 | task 14 | cached n_tokens = 50, memory_seq_rm [50, end)
    I slot      release: id  1 | task 14 | stop processing: n_tokens = 93, truncated = 0

Read from llama-server b11549's own log. There are no token IDs in it, so they are made: a prompt begins like the idle
slot that it shares most with, for exactly as many tokens as the log says, and goes on with new ones. What it shares
with a busy slot, or with something no slot holds any more, is not in the log: sharing is a lower bound. Where more was
kept than any slot held, the RAM cache brought it; it is taken from the shortest sequence which slots have lost that is
long enough, since a chat that goes on is brought back whole.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workloads.traces.base import lines
from workloads.traces.logs.base import InOrder, LoggedRequest, LogReport
from workloads.traces.stretches import Numbers, Stretch, cut, length

LINE = re.compile(r"\bslot +\S+: id +(\d+) \| task (-?\d+) \| (.*)")
CLOCK = re.compile(r"^(\d+)\.(\d\d)\.(\d\d\d)\.(\d\d\d) ")
SIM = re.compile(r"checking sim = [\d.]+ \((\d+)/(\d+)\)")
NEW = re.compile(r"new prompt, .*task\.n_tokens = (\d+)")
SELECTED = re.compile(r"selected slot by ")
KEPT = re.compile(r"cached n_tokens = (\d+), memory_seq_rm")
RELEASED = re.compile(r"stop processing: n_tokens = (\d+)")
LOST_KEPT = 256
"""Sequences that slots have lost and the RAM cache may bring back."""


Sequence = tuple[Stretch, ...]


@dataclass(slots=True)
class _Slot:
    sequence: Sequence = ()
    """What it holds."""
    like: tuple[Sequence, int] = ((), 0)
    """What its next prompt begins like, and for how long, by the similarities printed when it was selected."""
    task: str | None = None
    prompt_len: int = 0
    begun: bool = False


@dataclass(slots=True)
class _Log:
    numbers: Numbers = field(default_factory=Numbers)
    slots: dict[int, _Slot] = field(default_factory=dict)
    similar: dict[int, int] = field(default_factory=dict)
    """Common prefix of the next task with each idle slot."""
    lost: deque[Sequence] = field(default_factory=lambda: deque(maxlen=LOST_KEPT))
    guessed: int = 0


def read(path: Path, report: LogReport) -> Iterator[LoggedRequest]:
    """Requests in the order their slots took them up. UsageError where the file cannot be read."""
    log, waiting = _Log(), InOrder()
    for number, raw in lines(path):
        text = raw.decode(errors="replace")
        if (found := LINE.search(text)) is None:
            continue
        slot_id, task, said = int(found.group(1)), found.group(2), found.group(3)
        slot = log.slots.setdefault(slot_id, _Slot())
        if similar := SIM.search(said):
            log.similar[slot_id] = int(similar.group(1))
        elif SELECTED.search(said):
            slot.like = _most_similar(log, slot)
            log.similar = {}
        elif new := NEW.search(said):
            slot.task, slot.prompt_len, slot.begun = task, int(new.group(1)), False
        elif (kept := KEPT.search(said)) and slot.task == task and not slot.begun:
            slot.begun = True  # further lines of this kind begin later chunks
            ids = _ids(_prompt(log, slot, int(kept.group(1))))
            request = LoggedRequest(line=number, ids=ids, arrival_ns=_clock_ns(text), hit_len=int(kept.group(1)))
            waiting.arrived(task, request)
        elif (released := RELEASED.search(said)) and slot.task == task:
            # The last generated token is sampled and never computed: it is not in the slot.
            answer = log.numbers.take(max(0, int(released.group(1)) - slot.prompt_len))
            slot.sequence = (*slot.sequence, *answer)
            slot.task = None
            if (request_done := waiting.get(task)) is not None:
                request_done.output_ids = np.concatenate([_ids(answer), _ids(log.numbers.take(1))])
            yield from waiting.finished(task)
    yield from waiting.rest()
    report.notes.append("the log has no token IDs: they are made from what slots shared, and sharing is a lower bound")
    if log.guessed:
        report.notes.append(f"{log.guessed} prompts came back from the RAM cache; from which sequence is guessed")


def _most_similar(log: _Log, chosen: _Slot) -> tuple[Sequence, int]:
    """Of the idle slots; the chosen one where none is better."""
    best, shared = chosen, 0
    for slot_id, tokens in log.similar.items():
        slot = log.slots[slot_id]
        if (tokens, slot is chosen) > (shared, best is chosen):
            best, shared = slot, tokens
    return best.sequence, shared


def _prompt(log: _Log, slot: _Slot, kept: int) -> Sequence:
    """The prompt of a slot's new task, which the slot holds from now on."""
    base, shared = slot.like
    if kept > shared and not shared and length(slot.sequence) >= kept:
        base, shared = slot.sequence, kept  # a client that names its slot is not asked what it is similar to
    elif kept > shared:
        enough = [each for each in reversed(log.lost) if length(each) >= kept]
        found = min(enough, key=length, default=None)
        base, shared = found or log.numbers.take(kept), kept
        log.guessed += 1
    prompt = cut(base, min(shared, slot.prompt_len))
    if prompt != slot.sequence[: len(prompt)] or length(slot.sequence) > length(prompt):
        log.lost.append(slot.sequence)
    slot.sequence = prompt = (*prompt, *log.numbers.take(slot.prompt_len - length(prompt)))
    slot.like = ((), 0)
    return prompt


def _ids(stretches: Sequence) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    pieces = [np.arange(start, start + count, dtype=np.int32) for start, count in stretches]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int32)


def _clock_ns(text: str) -> int | None:
    """Since the server's start: minutes, seconds, milliseconds and microseconds."""
    if (found := CLOCK.match(text)) is None:
        return None
    minutes, seconds, milli, micro = map(int, found.groups())
    return ((minutes * 60 + seconds) * 1_000_000 + milli * 1000 + micro) * 1000
