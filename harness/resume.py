"""May a run be gone on with? Only by the same hitparity, on the same experiment, models and engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.records import CellManifest, RunManifest
from vocabulary.engine import EngineFacts
from vocabulary.errors import UsageError

REMEDY = "run without --resume to begin a new run"
SHOWN = 3
"""Differences that are named; the others are counted."""
ENGINE_FACTS = ("version", "device", "dtype", "granule")
"""What must not change between cells of one engine in one run."""


def check_same(
    earlier: RunManifest, now: RunManifest, cells: Sequence[CellManifest], fingerprint: Callable[[str], str]
) -> None:
    """Compare code, experiment and models of the run with today's; `fingerprint` opens a model by name.

    Raises UsageError that says what differs.
    """
    if earlier.hitparity != now.hitparity:
        raise UsageError(
            f"this run was made by hitparity {earlier.hitparity}, this is {now.hitparity} (version and digest of its "
            f"sources): their numbers do not belong into one run; use that version, or {REMEDY}"
        )
    if earlier.experiment_digest != now.experiment_digest:
        found = [
            f"{key} was {old!r}, is {new!r}" for key, old, new in _differences(earlier.configuration, now.configuration)
        ]
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        what = "; ".join(found[:SHOWN]) + more or "a document or an environment variable that it names"
        raise UsageError(f"the experiment has changed since this run was made: {what}; {REMEDY}")
    for model in dict.fromkeys(cell.model for cell in cells if cell.model_fingerprint):
        here = fingerprint(model)
        if any(cell.model_fingerprint not in ("", here) for cell in cells if cell.model == model):
            raise UsageError(f"model {model!r} has other weights than when this run began; {REMEDY}")


def check_engine(facts: EngineFacts, label: str, model: str, cells: Sequence[CellManifest]) -> None:
    """Compare a started engine with what earlier cells of the run were measured on; UsageError says what differs."""
    for cell in cells:
        if cell.engine_label != label or cell.model != model or cell.facts is None:
            continue
        for name in ENGINE_FACTS:
            old, new = cell.facts.get(name), getattr(facts, name)
            if old != new:
                raise UsageError(
                    f"{label}: {name} is {new!r} now and was {old!r} when {cell.cell} was measured; start the engine "
                    f"as it was, or {REMEDY}"
                )


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _differences(*pair, f"{key}[{number}]")
    elif old != new:
        yield key, _short(old), _short(new)


def _short(value: Any) -> Any:
    return f"{len(value)} entries" if isinstance(value, list) and len(str(value)) > 80 else value
