"""Family name to parameter model and function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workloads.families.base import Parameters
from workloads.families.burst import Burst, burst
from workloads.families.changed import Changed, changed
from workloads.families.churn import Churn, churn
from workloads.families.edit import Edit, edit
from workloads.families.features import Features, features
from workloads.families.fork import Fork, fork
from workloads.families.grow import Grow, grow
from workloads.families.interleaved import Interleaved, interleaved
from workloads.families.key import Key, key
from workloads.families.ladder import Ladder, ladder
from workloads.families.pairs import Pairs, pairs
from workloads.families.poison import Poison, poison
from workloads.families.questions import Questions, questions
from workloads.families.repeat import Repeat, repeat
from workloads.families.retokenised import Retokenised, retokenised
from workloads.families.siblings import Siblings, siblings
from workloads.families.tools import Tools, tools
from workloads.families.trace import Trace, trace
from workloads.families.trim import Trim, trim
from workloads.families.window import Window, window
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

    def sends(self, parameters: Parameters, source: TokenSource) -> tuple[Send, ...]:
        """The workload; its prompts are runs where the parameters say so."""
        return self.build(parameters, source.drawing(parameters.ids == "runs"))


def _family(parameters: type[Parameters], build: Callable[[Any, TokenSource], tuple[Send, ...]]) -> Family:
    return Family(build.__name__, parameters, build, (sys.modules[build.__module__].__doc__ or "").strip())


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _family(Repeat, repeat),
        _family(Siblings, siblings),
        _family(Ladder, ladder),
        _family(Trim, trim),
        _family(Changed, changed),
        _family(Grow, grow),
        _family(Retokenised, retokenised),
        _family(Fork, fork),
        _family(Tools, tools),
        _family(Edit, edit),
        _family(Window, window),
        _family(Key, key),
        _family(Poison, poison),
        _family(Features, features),
        _family(Interleaved, interleaved),
        _family(Burst, burst),
        _family(Churn, churn),
        _family(Questions, questions),
        _family(Pairs, pairs),
        _family(Trace, trace),
    )
}
