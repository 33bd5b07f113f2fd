"""`hitparity list`: what there is to choose from, as tables."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import textwrap
from collections.abc import Callable
from enum import StrEnum

from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from adapters.registry import ADAPTERS, adapter_for
from harness.catalogue import catalogue
from harness.experiment import load_experiment
from reference_engine.laws.parts.history import History
from reference_engine.laws.registry import LAWS
from vocabulary.errors import UsageError
from vocabulary.ledger import Cause
from workloads.families.base import Parameters
from workloads.lengths import NOMINAL
from workloads.registry import FAMILIES, Family
from workloads.sequence import Ids
from workloads.source import TokenSource

SENDS_SHOWN = 24
"""Sends of one family that its listing shows."""


class Topic(StrEnum):
    """What can be listed."""

    ENGINES = "engines"
    LAWS = "laws"
    WORKLOADS = "workloads"
    CAUSES = "causes"
    EXPERIMENTS = "experiments"


def listing(topic: Topic, name: str | None = None) -> RenderableType:
    """What to print for a topic; with `name`, one workload family in full."""
    if name is not None:
        if topic is not Topic.WORKLOADS:
            raise UsageError(f"`hitparity list {topic}` takes no name; `hitparity list workloads NAME` does")
        return _family(name)
    tables: dict[Topic, Callable[[], RenderableType]] = {
        Topic.ENGINES: _engines,
        Topic.LAWS: _laws,
        Topic.WORKLOADS: _workloads,
        Topic.CAUSES: _causes,
        Topic.EXPERIMENTS: _experiments,
    }
    return tables[topic]()


def enum_meanings(kind: type[StrEnum]) -> dict[str, str]:
    """Member value to the docstring written below it; enums keep none at run time."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings = {}
    for member, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            name = member.targets[0]
            assert isinstance(name, ast.Name)
            meanings[str(kind[name.id].value)] = " ".join(str(text.value.value).split())
    return meanings


def _engines() -> Table:
    table = Table("engine", "version", "modes", "options")
    for name in ADAPTERS:
        adapter = adapter_for(name)
        options = ", ".join(adapter.options.model_fields) or "those of the law (`hitparity list laws`)"
        table.add_row(name, adapter.default_version or "-", ", ".join(adapter.modes), options)
    return table


def _laws() -> Table:
    table = Table("law", "covers", "options")
    for entry in LAWS.values():
        table.add_row(entry.id, entry.covers, ", ".join(entry.options))
    return table


def _workloads() -> Group:
    texts = []
    for family in FAMILIES.values():
        names = [f"{key} = {_default(field)}" for key, field in family.parameters.model_fields.items()]
        texts.append(Text(f"{family.name}\n{family.picture}\n    parameters: {', '.join(names)}\n"))
    return Group(*texts, Text("`hitparity list workloads NAME` explains the parameters of one and shows its prompts."))


def _family(name: str) -> Group:
    """Picture, parameters with their meaning, and the sends of its defaults on an engine like `NOMINAL`."""
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FAMILIES)}"
        raise UsageError(f"unknown workload family {name!r}; {hint}")
    family = FAMILIES[name]
    table = Table("parameter", "default", "meaning")
    for key, field in family.parameters.model_fields.items():
        inherited = Parameters.model_fields.get(key, field)
        meaning = field.description or inherited.description or ""
        table.add_row(key, escape(_default(field)), escape(" ".join(meaning.split())))
    parts: list[RenderableType] = [Text(f"{family.name}\n{family.picture}\n"), table]
    parts.append(Text(" ".join((family.parameters.__doc__ or "").split())))
    if not any(field.is_required() for field in family.parameters.model_fields.values()):
        scale = f"granule of {NOMINAL.granule}, window of {NOMINAL.window} and pool of {NOMINAL.pool} tokens"
        parts += [Text(f"\nThe defaults, sent to an engine with a {scale}:"), _sends(family)]
    return Group(*parts)


def _default(field: FieldInfo) -> str:
    return "(required)" if field.is_required() else json.dumps(field.default, default=str)


def _sends(family: Family) -> Table:
    """The first sends with how much of each prompt an earlier one of them shares."""
    source = TokenSource(0, 1 << 16, granule=NOMINAL.granule)
    sends = family.sends(family.parameters().at(NOMINAL), source)
    table = Table("send", "label", "tokens", "shared before", "how")
    outputs: list[Ids] = []
    history = History()
    for number, send in enumerate(sends):
        if send.reset_before:
            history.clear()
        request = send.request(str(number), outputs)
        shared = history.lcp(request.array, request.space)
        outputs.append(tuple((number * 31 + i) % (1 << 16) for i in range(send.max_tokens)))
        history.add(request.computed(outputs[-1]), request.space)
        if number < SENDS_SHOWN:
            notes = (
                "reset first" if send.reset_before else "",
                "with the one before" if send.with_previous else "",
                send.namespace or "",
                send.lora or "",
                ", ".join(f"{item.identifier} at {item.start}" for item in send.media),
                ", ".join(sorted(send.features)),
                f"may hit {send.at_most}" if send.at_most is not None else "",
            )
            how = ", ".join(filter(None, notes))
            table.add_row(str(number + 1), escape(send.label), str(request.prompt_len), str(shared), escape(how))
    if len(sends) > SENDS_SHOWN:
        table.add_row("...", f"{len(sends)} sends in all")
    return table


def _causes() -> Table:
    table = Table("cause", "the interval is recomputed because")
    for cause, meaning in enum_meanings(Cause).items():
        table.add_row(cause, escape(meaning))
    return table


def _experiments() -> Table:
    table = Table("experiment", "description", "engines", "workloads")
    for name, path in catalogue().items():
        experiment = load_experiment(path)
        engines = dict.fromkeys(engine.law or engine.name for engine in experiment.engine)
        workloads = dict.fromkeys(workload.name or workload.family for workload in experiment.workload)
        table.add_row(name, escape(experiment.description), ", ".join(engines), ", ".join(workloads))
    return table
