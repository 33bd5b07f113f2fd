"""`hitparity list`: what there is to choose from, as tables."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from adapters.registry import ADAPTERS, adapter_for
from harness.catalogue import catalogue
from harness.experiment import load_experiment
from reference_engine.laws.registry import LAWS
from vocabulary.ledger import Cause
from workloads.registry import FAMILIES


class Topic(StrEnum):
    """What can be listed."""

    ENGINES = "engines"
    LAWS = "laws"
    WORKLOADS = "workloads"
    CAUSES = "causes"
    EXPERIMENTS = "experiments"


def listing(topic: Topic) -> RenderableType:
    """What to print for a topic."""
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
        names = [f"{key} = {field.default}" for key, field in family.parameters.model_fields.items()]
        parameters = ", ".join(name.replace("PydanticUndefined", "(required)") for name in names)
        texts.append(Text(f"{family.name}\n{family.picture}\n    parameters: {parameters}\n"))
    return Group(*texts)


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
