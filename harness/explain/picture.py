"""A ledger as one line: every interval at least one character wide, the rest in proportion to its tokens."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from vocabulary.ledger import Cause, Interval, Ledger

MARKS: dict[Cause, tuple[str, str]] = {
    Cause.REUSED: ("#", "blue"),
    Cause.NOVEL: (".", "bright_black"),
    Cause.LAST_TOKEN: ("|", "yellow"),
    Cause.GRANULE: ("/", "yellow"),
    Cause.SPEC_DROP: ("\\", "magenta"),
    Cause.SUCCESSOR: (">", "magenta"),
    Cause.ALIGNMENT: ("+", "yellow"),
    Cause.NO_STATE: ("~", "cyan"),
    Cause.WINDOW: ("w", "cyan"),
    Cause.CHECKPOINT: ("c", "cyan"),
    Cause.REPLAY: ("r", "cyan"),
    Cause.MIN_REUSE: ("m", "yellow"),
    Cause.SLOT: ("s", "green"),
    Cause.NAMESPACE: ("n", "green"),
    Cause.EVICTED: ("x", "green"),
    Cause.IN_FLIGHT: ("f", "green"),
    Cause.DISABLED: ("d", "magenta"),
    Cause.NO_LAW: ("-", "bright_black"),
    Cause.UNEXPLAINED: ("?", "red"),
}
"""Character and colour of each cause; the character alone tells them apart."""


def cells(ledger: Ledger, width: int) -> list[tuple[Interval, int]]:
    """Characters per interval; together `width`, or one each where there are more intervals than that."""
    intervals = ledger.intervals
    spare = max(width - len(intervals), 0)
    shares = [spare * interval.tokens / ledger.prompt_len for interval in intervals]
    counts = [1 + int(share) for share in shares]
    # Whole characters left over go to the largest remainders.
    order = sorted(range(len(shares)), key=lambda i: int(shares[i]) - shares[i])
    for i in order[: spare + len(intervals) - sum(counts)]:
        counts[i] += 1
    return list(zip(intervals, counts, strict=True))


def picture(ledger: Ledger, width: int) -> Text:
    """The ledger in `width` characters, coloured where the terminal takes it."""
    text = Text(no_wrap=True, overflow="crop")
    for interval, count in cells(ledger, width):
        mark, colour = MARKS[interval.cause]
        text.append(mark * count, colour)
    return text


def intervals_text(ledger: Ledger) -> str:
    """Such as "reused [0, 1536), no_state [1536, 3071), last_token [3071, 3072)"."""
    return ", ".join(f"{i.cause.value} [{i.start}, {i.end})" for i in ledger.intervals)


def legend(ledgers: list[Ledger]) -> Text:
    """The marks that occur, in the order of `Cause`."""
    used = {interval.cause for ledger in ledgers for interval in ledger.intervals}
    text = Text()
    for cause, (mark, colour) in MARKS.items():
        if cause in used:
            text.append("  " if text else "")
            text.append(mark, colour)
            text.append(f" {cause.value}")
    return text


def picture_width(console: Console, beside: int) -> int:
    """Characters for a picture next to `beside` others, at least 20 and at most 100."""
    return max(20, min(100, console.width - beside))
