"""Lengths relative to what an engine is: "3g+1" is three granules and a token.

    g   the engine's granule (block, page or token)
    W   its sliding window
    P   its pool, in tokens

A term is a number, a unit or a number before a unit ("2g", "0.5P"); terms are joined by + and -, and the sum is rounded
down to whole tokens. So one experiment probes each engine at its own edges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

_TERM = re.compile(r"([+-]?)(\d+(?:\.\d+)?)?([gWP])?")
LONGEST = 4_000_000
"""Tokens; no engine takes a longer prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What the units stand for on one engine, in tokens; None: the engine has or says no such thing."""

    granule: int
    window: int | None = None
    pool: int | None = None

    def tokens(self, text: str) -> int:
        """The length that `text` means here; ValueError where it is no length or its unit means nothing here."""
        compact = text.replace(" ", "")
        position, total = 0, Fraction(0)
        while position < len(compact) or not compact:
            term = _TERM.match(compact, position)
            assert term is not None
            sign, number, unit = term.groups()
            if (number, unit) == (None, None) or (position and not sign):
                raise ValueError(f"{text!r}: write a number or a sum such as 3g+1, W-1 or 0.5P")
            total += Fraction(f"{sign}{number or 1}") * self._unit(unit, text)
            position = term.end()
        return int(total // 1)

    def _unit(self, unit: str | None, text: str) -> int:
        if unit == "g":
            return self.granule
        if unit == "W":
            if self.window is None:
                raise ValueError(f"{text!r}: this engine has no sliding window on this model, or does not say it")
            return self.window
        if unit == "P":
            if self.pool is None:
                raise ValueError(f"{text!r}: this engine's pool is unbounded or not known; give it a size")
            return self.pool
        return 1


NOMINAL = Scale(granule=16, window=128, pool=4096)
"""Stands in while no engine is known: an experiment is checked by it before anything starts."""


def _evaluated(value: Any, info: ValidationInfo) -> Any:
    scale = info.context if isinstance(info.context, Scale) else NOMINAL
    return scale.tokens(value) if isinstance(value, str) else value


Length = Annotated[int, BeforeValidator(_evaluated), Field(ge=1, le=LONGEST)]
"""A length in tokens, or a text relative to the engine."""
Span = Annotated[int, BeforeValidator(_evaluated), Field(ge=0, le=LONGEST)]
"""As `Length`, and may be 0."""


def relative(default: str | tuple[str | int, ...]) -> Any:
    """Default of a field of such lengths; the parameters' model evaluates it like anything that is given."""
    return default
