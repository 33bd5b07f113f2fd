"""Ctrl-C and SIGTERM: the first lets the request in flight finish and be written, the second stops at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """Installs handlers while the context is open; outside `deferred` a signal raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._deferring = self._asked = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A signal in here takes effect at the end of the block; a second one takes effect at once."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._asked:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._deferring and not self._asked:
            self._asked = True
            say("stopping when the request in flight is written; once more stops now")
            return
        say("stopping")
        raise KeyboardInterrupt


def say(what: str) -> None:
    """One line on stderr, from within a signal handler: neither buffers nor locks."""
    os.write(2, f"\nhitparity: {what}\n".encode())
