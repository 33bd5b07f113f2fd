"""Where each prefill step began, read from llama-server's log.

Source: llama.cpp b11549, verbosity 4. The server prints, whenever it is about to fill a batch with a slot's prompt,

    slot operator(): id  0 | task 8 | cached n_tokens = 1026, memory_seq_rm [1026, end)

and, once a request is done, `slot release: id  0 | task 8 | stop processing`. The first N of a task is where
its computation starts, each later one where a further step does. The line is printed where the cells behind
N are removed: another place in the code than the counters of the reply.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

_LINE = re.compile(rb"\| *task (?P<task>\d+) \| .*?(?:memory_seq_rm \[(?P<start>\d+), end\)|(?P<end>stop processing))")
_SLOT = re.compile(rb" id +(\d+) ")
WAIT_S = 2.0


@dataclass(slots=True)
class PromptRun:
    """One request as the log tells it."""

    slot: int
    starts: list[int] = field(default_factory=list)
    """First position of each prefill step, in order."""
    done: bool = False


class ServerLog:
    """Follows a growing log from where it stands now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size
        self._rest = b""
        self._runs: dict[int, PromptRun] = {}

    def finished(self, count: int, wait_s: float = WAIT_S) -> list[PromptRun]:
        """The runs that ended since the last call, in the order in which they began.

        Waits for `count` of them, as the log is written by a thread of its own; fewer come back when the time is up.
        """
        deadline = time.monotonic() + wait_s
        while self._read() < count and time.monotonic() < deadline:
            time.sleep(0.002)
        ended = {task: run for task, run in self._runs.items() if run.done}
        for task in ended:
            del self._runs[task]
        return [run for run in ended.values() if run.starts]

    def _read(self) -> int:
        """Take in new lines; number of runs that have ended."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if (found := _LINE.search(line)) and (slot := _SLOT.search(line)):
                run = self._runs.setdefault(int(found["task"]), PromptRun(int(slot[1])))
                if found["end"]:
                    run.done = True
                else:
                    run.starts.append(int(found["start"]))
        return sum(run.done and bool(run.starts) for run in self._runs.values())
