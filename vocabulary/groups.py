"""A group of layers whose cache lives and dies together, as engines and case files write it.

full            full attention, block or page size left to the options
full:528        full attention in blocks of 528 tokens
swa:128         sliding window of 128 tokens
swa:16:128      the same in blocks of 16 tokens
gdn, gdn:528    recurrent state (gated delta net, Mamba, short convolution)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from vocabulary.errors import UsageError


class Kind(StrEnum):
    """What a group of layers keeps."""

    FULL = "full"
    """Keys and values of every position."""
    SWA = "swa"
    """Keys and values of the last `window` positions."""
    GDN = "gdn"
    """One state, valid at one position."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """One group; `str()` gives the text it is parsed from."""

    kind: Kind
    block: int | None = None
    """Tokens per block or page; None: not said here."""
    window: int | None = None
    """Sliding window in tokens, the token itself included; only and always for `swa`."""

    @classmethod
    def parse(cls, text: str) -> LayerGroup:
        """Read one group; UsageError names what is wrong with it."""
        kind, *numbers = text.split(":")
        most = {"full": 1, "gdn": 1, "swa": 2}.get(kind)
        if most is None or len(numbers) > most or not all(n.isascii() and n.isdigit() and int(n) > 0 for n in numbers):
            raise UsageError(
                f"layer group {text!r}: write full, full:BLOCK, gdn, gdn:BLOCK, swa:WINDOW or swa:BLOCK:WINDOW"
            )
        values = [int(n) for n in numbers]
        if kind == "swa":
            if not values:
                raise UsageError(f"layer group {text!r}: the window is missing; write swa:WINDOW or swa:BLOCK:WINDOW")
            return cls(Kind.SWA, values[0] if len(values) == 2 else None, values[-1])
        return cls(Kind(kind), values[0] if values else None)

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.kind, self.block, self.window) if part is not None)


def parse_groups(texts: Iterable[str]) -> tuple[LayerGroup, ...]:
    """All groups of one model, in order."""
    return tuple(LayerGroup.parse(text) for text in texts)
