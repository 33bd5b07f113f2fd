"""The experiment file: TOML, checked key by key before anything starts.

    name = "quickstart"
    seed = 0
    models = ["smollm2-135m"]

    [[engine]]
    name = "vllm"
    options = { block_size = 32 }

    [[engine]]                      # a list of values makes one configuration per value
    name = "sglang"
    matrix = { page_size = [1, 16, 64] }

    [[workload]]
    family = "changed"
    shared = 1024

Every engine x model x workload is a cell, unless a workload names its own models or engines.
`extends = "other.toml"` starts from another file: lists grow, other keys are replaced.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from adapters.base import EngineSpec
from adapters.http import check_url
from adapters.registry import adapter_for
from vocabulary.bounded import read_toml
from vocabulary.engine import Mode
from vocabulary.errors import HitparityError, UsageError
from workloads.families.base import Parameters
from workloads.registry import FAMILIES, Family

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$")]
MAX_FILE_BYTES = 1 << 20
MAX_EXTENDS = 5
FILE_KEYS = ("document", "trace")
"""Keys of a workload that name a file, relative to the experiment file."""
Model = TypeVar("Model", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineEntry(_Strict):
    """One `[[engine]]` table."""

    name: str
    """Engine of `hitparity list engines`, or "law" for a prediction without any engine."""
    label: str | None = None
    """Name in tables; made from name and options where absent."""
    version: str | None = None
    mode: Mode | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    law: str | None = None
    """The law that "law" predicts by, or that the reference engine's cache follows."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    python: Path | None = None
    binary: Path | None = None
    url: str | None = None
    api_key_env: str | None = None
    api_key_file: Path | None = None
    """In place of the variable; readable by its owner only."""
    start_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    request_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    stop_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 20.0
    environment: dict[str, str] = Field(default_factory=dict)
    starts: Annotated[int, Field(ge=1, le=100)] = 1
    """How many times the engine is started and given all its workloads: process starts differ in speed."""

    def configurations(self) -> list[tuple[str, EngineSpec]]:
        """`(label, spec)` for every combination of the matrix; options checked by the adapter."""
        adapter = adapter_for(self.name)
        mode = self.mode or (Mode.ATTACH if self.url else adapter.modes[0])
        if mode not in adapter.modes:
            known = ", ".join(adapter.modes)
            raise UsageError(f"engine {self.name!r}: mode {mode.value!r} is not supported; supported: {known}")
        if (mode is Mode.ATTACH) != (self.url is not None):
            raise UsageError(f"engine {self.name!r}: `url` and mode 'attach' go together")
        if self.url is not None:
            check_url(f"engine {self.name!r}", self.url)
        if self.api_key_env and self.api_key_file:
            raise UsageError(f"engine {self.name!r}: give `api_key_env` or `api_key_file`, not both")
        found = []
        for values in itertools.product(*self.matrix.values()):
            chosen = dict(zip(self.matrix, values, strict=True))
            options = checked(adapter.options, self.options | chosen, f"engine {self.name!r}, options")
            spec = EngineSpec(
                engine=self.name,
                version=self.version or adapter.default_version,
                mode=mode,
                device=self.device,
                dtype=self.dtype,
                options=options,
                law=self.law,
                port=self.port,
                python=self.python,
                binary=self.binary,
                url=self.url,
                api_key_env=self.api_key_env,
                api_key_file=self.api_key_file,
                start_timeout_s=self.start_timeout_s,
                request_timeout_s=self.request_timeout_s,
                stop_timeout_s=self.stop_timeout_s,
                environment=self.environment,
            )
            adapter.check(spec)
            found.append((self._label(chosen), spec))
        return found

    def _label(self, chosen: dict[str, Any]) -> str:
        base = self.label or (f"law {self.law}" if self.name == "law" else self.name)
        if not self.label and self.name == "reference" and self.law:
            base = f"reference as {self.law}"
        return " ".join([base, *(f"{key}={value}" for key, value in chosen.items())])


class WorkloadEntry(BaseModel):
    """One `[[workload]]` table: `family`, the parameters of that family, and the keys below."""

    model_config = ConfigDict(extra="allow", frozen=True)

    family: str
    name: Name | None = None
    models: tuple[str, ...] | None = None
    """Models to run it on; all of the experiment's where absent."""
    engines: tuple[str, ...] | None = None
    """Names or labels of engines to run it on; all where absent."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The experiment's where absent."""

    def resolve(self) -> tuple[Family, Parameters]:
        """The family and its checked parameters."""
        if self.family not in FAMILIES:
            raise UsageError(f"unknown workload family {self.family!r}; {_hint(self.family, FAMILIES)}")
        family = FAMILIES[self.family]
        return family, checked(family.parameters, self.model_extra or {}, f"workload {self.family!r}")


class Checks(_Strict):
    """`[checks]`: the trust rules that cost requests."""

    verify_reset: bool = True
    """Prove, before each cell, that a reset empties the cache."""
    control: bool = True
    """Send every prompt that was served warm once more cold, and one prompt cold twice, and compare outputs."""
    logprobs: bool = True
    """Ask for the log-probability of the first token (leaves the lookup alone in every adapter)."""


class Experiment(_Strict):
    """A whole experiment file."""

    name: Name
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of `hitparity model list`, or paths of model folders."""
    engine: Annotated[tuple[EngineEntry, ...], Field(min_length=1)]
    workload: Annotated[tuple[WorkloadEntry, ...], Field(min_length=1)]
    checks: Checks = Checks()
    contents: Literal["full", "hashes"] = "full"
    """"hashes": records hold SHA-256 of what was generated in place of the IDs; of prompts they never hold more."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        names = [name for engine in self.engine for name in (engine.name, engine.label) if name]
        for workload in self.workload:
            for model in workload.models or ():
                if model not in self.models:
                    raise ValueError(f"workload {workload.family!r} names model {model!r}; {_hint(model, self.models)}")
            for engine in workload.engines or ():
                if engine not in names:
                    raise ValueError(f"workload {workload.family!r} names engine {engine!r}; {_hint(engine, names)}")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the checked content; a run resumes only under the same one."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment file; UsageError names the file, the key or line, and the remedy."""
    data = _read(path)
    try:
        experiment = checked(Experiment, data, "experiment")
        for entry in experiment.engine:
            entry.configurations()
        for workload in experiment.workload:
            workload.resolve()
    except HitparityError as error:
        raise type(error)(f"{path}: {error}") from None
    return experiment


def _read(path: Path, depth: int = 0) -> dict[str, Any]:
    """The file's tables on top of those of the file it `extends`: lists are appended, other keys replace."""
    if not path.exists():
        raise UsageError(f"{path}: no such file; `hitparity list experiments` shows the ready ones")
    data = read_toml(path, MAX_FILE_BYTES)
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str) or depth == MAX_EXTENDS:
        raise UsageError(f"{path}: `extends` takes one file name, and at most {MAX_EXTENDS} files may be chained")
    merged = _read(path.parent / base, depth + 1)
    if (moved := os.path.relpath((path.parent / base).parent, path.parent)) != ".":
        for workload in merged.get("workload", ()):
            for key in FILE_KEYS:
                if isinstance(workload, dict) and isinstance(named := workload.get(key), str):
                    workload[key] = str(Path(moved) / named)
    for key, value in data.items():
        both_lists = isinstance(value, list) and isinstance(merged.get(key), list)
        merged[key] = merged[key] + value if both_lists else value
    return merged


def checked(model: type[Model], data: dict[str, Any], where: str) -> Model:
    """Validate, turning the first problem into one sentence with the key and the nearest known one."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=True)[0]
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _known_keys(model, problem["loc"][:-1])
            raise UsageError(f"{where}: unknown key {key!r}; {_hint(str(problem['loc'][-1]), known)}") from None
        if problem["type"] == "missing":
            raise UsageError(f"{where}: key {key!r} is missing") from None
        message = problem["msg"].removeprefix("Value error, ")
        at = f" key {key!r}:" if key else ""
        secret = "environment" in problem["loc"] or "key" in str(problem["loc"][-1:])
        given = f" (given: {problem['input']!r:.80})" if key and not secret else ""
        raise UsageError(f"{where}:{at} {message}{given}") from None


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Field names of the model at a location of nested tables."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            inner = _inner_model(model.model_fields[part].annotation)
            model = inner or model
    return list(model.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in getattr(annotation, "__args__", ()) if (found := _inner_model(arg))), None)


def _hint(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
