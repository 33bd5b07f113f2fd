"""Whether two cells may be compared, and the field that speaks against it.

A comparison is about one thing. Everything else must be the same, or the difference could come from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.records import CellManifest
from vocabulary.errors import UsageError


class Subject(StrEnum):
    """What a comparison is about; it may differ between the sides."""

    VERSION = "version"
    """The engine's version, and the defaults that came with it."""
    OPTIONS = "options"
    """The engine's options, device and number format."""
    ENGINE = "engine"
    """The engine itself, with its version, options and fidelity."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """One field with different values."""

    field: str
    base: object
    candidate: object
    allowed_by: frozenset[Subject]
    """Subjects that make it part of the comparison; empty: none does."""

    def __str__(self) -> str:
        return f"{self.field} differs: {self.base!r} and {self.candidate!r}"


CONFIGURED = frozenset({Subject.OPTIONS, Subject.ENGINE})
RESOLVED = frozenset(Subject)
"""What the engine made of it: follows from version and options."""
_ENGINE = frozenset({Subject.ENGINE})
_VERSION = frozenset({Subject.VERSION, Subject.ENGINE})
NEVER: frozenset[Subject] = frozenset()


def refuse_unlike(base: CellManifest, candidate: CellManifest, about: frozenset[Subject]) -> list[Unlike]:
    """The differences that the comparison is about; UsageError names the first that it is not about."""
    found = list(_differences(base, candidate))
    for unlike in found:
        if not unlike.allowed_by & about:
            raise UsageError(f"{base.workload} on {base.model}: {unlike}; {_remedy(unlike)}")
    return found


def _remedy(unlike: Unlike) -> str:
    if unlike.allowed_by:
        subject = next(s for s in Subject if s in unlike.allowed_by)
        return f"if that is what the comparison is about, add --about {subject}"
    return "no comparison is possible; run both sides with the same models and workloads"


def _differences(base: CellManifest, candidate: CellManifest) -> Iterator[Unlike]:
    first, second = base.facts or {}, candidate.facts or {}
    fields: list[tuple[str, object, object, frozenset[Subject]]] = [
        ("model", base.model, candidate.model, NEVER),
        ("model_fingerprint", base.model_fingerprint, candidate.model_fingerprint, NEVER),
        ("workload", base.workload, candidate.workload, NEVER),
        ("family", base.family, candidate.family, NEVER),
        ("seed", base.seed, candidate.seed, NEVER),
        *_nested("parameters", base.parameters, candidate.parameters, NEVER),
        ("engine", first.get("engine"), second.get("engine"), _ENGINE),
        ("fidelity", first.get("fidelity"), second.get("fidelity"), _ENGINE),
        ("emulated", first.get("emulated"), second.get("emulated"), _ENGINE),
        ("version", first.get("version"), second.get("version"), _VERSION),
        *((name, first.get(name), second.get(name), CONFIGURED) for name in ("mode", "device", "dtype")),
        *_nested("options", _asked(base), _asked(candidate), CONFIGURED),
        *_nested("law_options", first.get("law_options") or {}, second.get("law_options") or {}, RESOLVED),
    ]
    for field, one, other, allowed in fields:
        if one != other:
            yield Unlike(field, one, other, allowed)


def _nested(
    name: str, one: Mapping[str, Any], other: Mapping[str, Any], allowed: frozenset[Subject]
) -> list[tuple[str, object, object, frozenset[Subject]]]:
    return [(f"{name}.{key}", one.get(key), other.get(key), allowed) for key in sorted({*one, *other})]


def _asked(cell: CellManifest) -> Mapping[str, Any]:
    """The options of the experiment file."""
    options = cell.configuration.get("options")
    return options if isinstance(options, dict) else {}
