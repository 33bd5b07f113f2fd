"""Fuzz results as a file, and as the table of docs/fuzz.md.

python -m harness.fuzz.page benchmarks/results/fuzz.json docs/fuzz.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.fuzz.campaign import Tally
from harness.fuzz.configurations import configurations
from vocabulary.engine import Fidelity
from vocabulary.errors import UsageError

COLUMNS = (
    "engine", "configuration", "groups", "options", "variants", "against", "seed",
    "requests", "with a hit", "differ", "remark",
)  # fmt: skip
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


class FuzzResult(BaseModel):
    """One configuration, as `hitparity fuzz --json` writes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str
    configuration: str
    groups: tuple[str, ...]
    options: dict[str, Any]
    variants: int
    against: Fidelity
    seed: int
    requests: int
    sequences: int
    hits: int
    """Requests of which the engine reused something."""
    differing: int
    not_covered: dict[str, int]
    """Reason to sequences."""
    unfit: int
    failures: tuple[str, ...]
    seconds: float


def result_of(tally: Tally) -> FuzzResult:
    """A tally without the shrunk cases."""
    return FuzzResult(
        engine=tally.engine,
        configuration=tally.configuration,
        groups=tally.groups,
        options=dict(tally.options),
        variants=tally.variants,
        against=tally.against,
        seed=tally.seed,
        requests=tally.requests,
        sequences=tally.sequences,
        hits=tally.hits,
        differing=tally.differing,
        not_covered=tally.not_covered,
        unfit=tally.unfit,
        failures=tuple(tally.failures),
        seconds=round(tally.seconds, 1),
    )


_RESULTS = TypeAdapter(list[FuzzResult])


def load(path: Path) -> list[FuzzResult]:
    """Results written before; UsageError where the file is something else."""
    try:
        return _RESULTS.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(f"{path}: no fuzz results: {error}") from None


def save(path: Path, results: Sequence[FuzzResult]) -> None:
    """Write all results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_RESULTS.dump_json(list(results), indent=1) + b"\n")


def merged(results: Iterable[FuzzResult], new: FuzzResult) -> list[FuzzResult]:
    """`new` in the place of an earlier result of its configuration, in the order of the configurations."""
    by_key = {(each.engine, each.configuration): each for each in results}
    by_key[new.engine, new.configuration] = new
    order = {(each.engine, each.name): number for number, each in enumerate(configurations())}
    return sorted(by_key.values(), key=lambda each: order.get((each.engine, each.configuration), len(order)))


def table(results: Iterable[FuzzResult]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for each in results:
        options = ", ".join(f"`{key}` {value}" for key, value in each.options.items()) or "-"
        remarks = [f"{count} sequences not compared: {reason}" for reason, count in each.not_covered.items()]
        remarks += [f"{each.unfit} sequences did not fit the tiny vocabulary"] if each.unfit else []
        remarks += [f"engine failed: {failure}" for failure in each.failures]
        cells = (
            each.engine, each.configuration, " ".join(each.groups), options, each.variants, each.against, each.seed,
            f"{each.requests:,}", f"{each.hits:,}", each.differing, "; ".join(remarks) or "-",
        )  # fmt: skip
        lines.append("| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def fill(page: Path, results: Iterable[FuzzResult]) -> None:
    """Replace what stands between the page's two marks."""
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise UsageError(f"{page}: lacks {BEGIN} and {END}")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{head}{BEGIN}\n\n{table(results)}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    fill(Path(sys.argv[2]), load(Path(sys.argv[1])))
