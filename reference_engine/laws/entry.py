"""What a law's registry entry holds, and how its options are read. A law never guesses outside what it covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reference_engine.laws.base import Law
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import LayerGroup, parse_groups

GROUPS = "groups"
"""Option of every law: the model's layer groups as texts, such as ["full:528", "gdn:528"]; ["full"] where absent."""


@dataclass(frozen=True, slots=True)
class LawEntry:
    """One law id: what it covers, the options it reads, and how to build it."""

    id: str
    covers: str
    """The layer groups and features it covers, in words."""
    options: tuple[str, ...]
    """Engine options it reads, besides `groups`."""
    build: Callable[[Mapping[str, Any], int | None], Law]
    """`(options, pool_tokens)`; `pool_tokens=None` predicts with an unbounded pool unless the options bound it."""


def layer_groups(options: Mapping[str, Any]) -> tuple[LayerGroup, ...]:
    """The option `groups`, parsed; LawDoesNotCover where it is no list of texts."""
    texts = options.get(GROUPS, ("full",))
    if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
        raise LawDoesNotCover(f'groups = {texts!r}: a list such as ["full:16", "swa:16:128"] is needed')
    return parse_groups(texts)


def positive(options: Mapping[str, Any], key: str, default: int) -> int:
    """A positive whole number."""
    value = options.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LawDoesNotCover(f"{key} = {value!r}: a positive whole number is needed")
    return value


def given(options: Mapping[str, Any], key: str) -> int | None:
    """A positive whole number; None where there is none."""
    return None if options.get(key) is None else positive(options, key, 1)


def flag(options: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """True or false."""
    value = options.get(key, default)
    if not isinstance(value, bool):
        raise LawDoesNotCover(f"{key} = {value!r}: true or false is needed")
    return value


def share(options: Mapping[str, Any], key: str, default: float) -> float:
    """A number from 0 to 1."""
    value = options.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise LawDoesNotCover(f"{key} = {value!r}: a number from 0 to 1 is needed")
    return float(value)


def pages(pool_tokens: int | None, page_size: int, options: Mapping[str, Any], key: str) -> int | None:
    """Pages of the reference engine's pool, else those the options name; None: unbounded."""
    return given(options, key) if pool_tokens is None else pool_tokens // page_size
