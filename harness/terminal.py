"""The border to a terminal: everything a command prints goes through here.

Names of models, labels, error texts and log ends are written by others. A control character could move the cursor,
rename the window or hide a line, a bidirectional one could reverse what is read: both are shown as the replacement
character. Markup is escaped where texts are made (`rich.markup.escape`), HTML by jinja2's autoescape.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from harness.wording import plain

PIPE_WIDTH = 120
"""A pipe has no width of its own, and tables need more than the usual 80 columns."""
KEPT = "\n\N{NO-BREAK SPACE}"
"""Not printable by Unicode's account, and harmless."""


class Terminal(Console):
    """A console whose text holds no character that commands a terminal; rich's own commands are kept."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does it, text cleaned."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text, keep=KEPT), segment.style)


def terminal() -> Console:
    """Standard output."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Terminal(highlight=False, emoji=False, width=None if wide else PIPE_WIDTH)


def error_terminal() -> Console:
    """Standard error."""
    return Terminal(stderr=True, highlight=False, emoji=False)


@contextmanager
def working(console: Console) -> Iterator[Callable[[str], None]]:
    """A moving line that says what is being done; nothing where no terminal shows it."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(escape(text))


def never_fail_to_encode() -> None:
    """Show `?` for what an output's encoding lacks (LC_ALL=C, PYTHONIOENCODING=ascii), in place of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
