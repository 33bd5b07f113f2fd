"""An experiment as cells, grouped so that an engine starts once per configuration and model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.base import EngineSpec
from harness.experiment import Experiment
from reference_engine.laws.entry import GROUPS
from reference_engine.laws.registry import make_law
from vocabulary.engine import EngineFacts
from vocabulary.errors import UsageError
from vocabulary.groups import parse_groups
from workloads.families.base import Parameters
from workloads.lengths import Scale
from workloads.registry import Family

MAX_SLUG = 80
"""Longest part of a folder name; longer labels are cut, and numbered where that makes them equal."""
POOL_OPTIONS = ("pool_tokens", "max_total_tokens", "max_total_num_tokens", "n_ctx")
"""Options in which engines report the tokens of their pool."""
ONLY_KEYS = ("engine", "label", "model", "workload")


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """A workload with its parameters checked."""

    name: str
    family: Family
    parameters: Parameters
    seed: int

    def parameters_on(self, facts: EngineFacts | None) -> dict[str, Any]:
        """The parameters as JSON values: lengths on that engine, or as written where it or their meaning is missing."""
        try:
            parameters = self.parameters if facts is None else self.parameters.at(scale_of(facts))
        except UsageError:  # the cell has failed for it, and its manifest says so
            parameters, facts = self.parameters, None
        return parameters.model_dump(mode="json") | (parameters.given if facts is None else {})


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine configuration x model x workload."""

    id: str
    """Folder name, unique in the run."""
    engine_label: str
    model: str
    workload: PlannedWorkload


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that one engine start serves."""

    id: str
    engine_label: str
    spec: EngineSpec
    model: str
    cells: tuple[Cell, ...]

    @property
    def log_folder(self) -> str:
        """Where the engine's log goes, relative to the run folder: cells of a group share one engine."""
        return f"engines/{self.id}"


def scale_of(facts: EngineFacts) -> Scale:
    """What the units of relative lengths stand for on a started engine.

    The window is that of its layer groups, or of the groups its law reads; the pool is its law's, or the one it
    reports.
    """
    groups = parse_groups(facts.law_options.get(GROUPS, facts.groups))
    window = next((group.window for group in groups if group.window is not None), None)
    pool = make_law(facts.law, facts.law_options).pool_tokens if facts.law else None
    for name in POOL_OPTIONS:
        if pool is None and isinstance(size := facts.options.get(name), int):
            pool = size
    return Scale(granule=facts.granule, window=window, pool=pool)


def plan(experiment: Experiment, only: Sequence[str] = ()) -> tuple[Group, ...]:
    """All groups in file order; `only` holds "key=value" filters that must all match."""
    wanted = [_filter(text) for text in only]
    workloads = []
    names: set[str] = set()
    for entry in experiment.workload:
        family, parameters = entry.resolve()
        name = _unique(entry.name or family.name, names)
        seed = experiment.seed if entry.seed is None else entry.seed
        workloads.append((entry, PlannedWorkload(name, family, parameters, seed)))
    groups = []
    ids: set[str] = set()
    group_ids: set[str] = set()
    labels: set[str] = set()
    for engine in experiment.engine:
        for chosen, spec in engine.configurations():
            label = _unique(chosen, labels, " ")
            for model, start in itertools.product(experiment.models, range(engine.starts)):
                name = f"{label}--{Path(model).name}" + (f"--start{start + 1}" if engine.starts > 1 else "")
                group_id = _unique(_slug(name), group_ids)
                cells = []
                for entry, workload in workloads:
                    chosen_engines = {engine.name, engine.label} & set(entry.engines or (engine.name,))
                    if model in (entry.models or experiment.models) and chosen_engines:
                        # Every cell has its id before any is left out: a filter must not rename the others.
                        cell = Cell(_unique(f"{group_id}--{_slug(workload.name)}", ids), label, model, workload)
                        facts = {"engine": engine.name, "label": label, "model": model, "workload": workload.name}
                        if all(facts[key] == value for key, value in wanted):
                            cells.append(cell)
                if cells:
                    groups.append(Group(group_id, label, spec, model, tuple(cells)))
    if not groups:
        raise UsageError(f"nothing to run: no cell matches {' '.join(only) or 'the experiment'}")
    return tuple(groups)


def _filter(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or key not in ONLY_KEYS:
        raise UsageError(f"--only {text!r}: write key=value with a key of {', '.join(ONLY_KEYS)}")
    return key, value


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._@-]+", "-", text).strip("-.")[:MAX_SLUG] or "x"


def _unique(name: str, taken: set[str], separator: str = "-") -> str:
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}{separator}{number}"
    taken.add(found)
    return found
