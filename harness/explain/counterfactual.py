"""The same sequence asked of fresh copies of a law, with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reference_engine.laws.base import Expectation, Law
from reference_engine.laws.registry import LAWS, make_law
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover, UsageError

UNUSED = 2**31 - 10_000
"""IDs from here on continue no prompt."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request with what was generated for it."""

    request: TokenRequest
    output_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A law's configuration and a sequence on an empty cache; `but` makes another one."""

    law_id: str
    options: Mapping[str, Any]
    sent: tuple[Sent, ...]
    make: Callable[[str, Mapping[str, Any]], Law] = make_law

    def expectations(self) -> list[Expectation]:
        """What the law says about every request. Raises LawDoesNotCover and UsageError."""
        law, found = self.make(self.law_id, self.options), []
        for each in self.sent:
            found.append(law.send(each.request))
            law.finish(each.request, each.output_ids)
        return found

    def last(self) -> Expectation | None:
        """About the last request; None where the law refuses this world."""
        try:
            return self.expectations()[-1]
        except (LawDoesNotCover, UsageError):
            return None

    def until(self, index: int) -> World:
        """The sequence up to and with request `index`."""
        return replace(self, sent=self.sent[: index + 1])

    def longer(self, tokens: int) -> World:
        """The last prompt with more tokens that nothing else has."""
        last = self.sent[-1]
        ids = last.request.ids + tuple(range(UNUSED, UNUSED + tokens))
        return replace(self, sent=(*self.sent[:-1], replace(last, request=replace(last.request, ids=ids))))

    def again(self) -> World:
        """The last request sent once more."""
        last = self.sent[-1]
        request = replace(last.request, request_id=f"{last.request.request_id}, again")
        return replace(self, sent=(*self.sent, replace(last, request=request)))

    def under(self, options: Mapping[str, Any], law_id: str | None = None) -> World:
        """Other options, or another release's law."""
        return replace(self, options=options, law_id=law_id or self.law_id)


def known_options(law_id: str) -> Sequence[str]:
    """Engine options that a law reads."""
    entry = LAWS.get(law_id)
    return entry.options if entry else ()
