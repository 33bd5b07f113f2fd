"""Family name to parameter model and function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workloads.families.base import Parameters
from workloads.families.changed import Changed, changed
from workloads.families.grow import Grow, grow
from workloads.families.pairs import Pairs, pairs
from workloads.families.questions import Questions, questions
from workloads.families.repeat import Repeat, repeat
from workloads.families.siblings import Siblings, siblings
from workloads.families.trim import Trim, trim
from workloads.sequence import Send
from workloads.source import TokenSource


@dataclass(frozen=True, slots=True)
class Family:
    """A family's name, parameter model, function and picture."""

    name: str
    parameters: type[Parameters]
    build: Callable[[Any, TokenSource], tuple[Send, ...]]
    picture: str
    """The module's docstring: what it sends and which rule it separates."""


def _family(parameters: type[Parameters], build: Callable[[Any, TokenSource], tuple[Send, ...]]) -> Family:
    return Family(build.__name__, parameters, build, (sys.modules[build.__module__].__doc__ or "").strip())


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _family(Repeat, repeat),
        _family(Siblings, siblings),
        _family(Changed, changed),
        _family(Grow, grow),
        _family(Trim, trim),
        _family(Questions, questions),
        _family(Pairs, pairs),
    )
}
