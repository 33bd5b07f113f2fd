"""Hits of the first n tokens of one text, asked of the releases' own scheduler and cache code (`adapters.vllm_lookup`).

Each line of the file is one configuration, the lengths asked one after another on an empty cache, and the hits by
release; one that its engine refuses is missing. To ask anew, with the environments built:

    python -m tests.laws.vllm_lengths
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adapters.lookup import open_lookup
from vocabulary.engine import TokenRequest

FILE = Path(__file__).parent / "golden" / "vllm_lengths.jsonl"


@dataclass(frozen=True, slots=True)
class Lengths:
    """One configuration."""

    options: dict[str, Any]
    lengths: tuple[int, ...]
    hits: dict[str, tuple[int, ...]]
    """By law id."""


def read() -> list[Lengths]:
    """All of them."""
    return [Lengths(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]


def request(number: int, length: int) -> TokenRequest:
    """The request of that number; its one generated token continues none of the prompts."""
    return TokenRequest(request_id=str(number), ids=tuple(range(1, length + 1)), max_tokens=1)


OUTPUT = (0,)


def main() -> None:
    """Ask every engine again."""
    asked = read()
    for law_id in sorted({law_id for each in asked for law_id in each.hits}):
        for each in (one for one in asked if law_id in one.hits):
            with tempfile.TemporaryDirectory(prefix="hitparity-lengths-") as folder:
                lookup = open_lookup(law_id, each.options, Path(folder))
                seen = [lookup.send(request(*sent), OUTPUT).hit_len for sent in enumerate(each.lengths)]
                lookup.close()
            assert None not in seen, f"{law_id} {each.options}: an answer without a hit"
            each.hits[law_id] = tuple(hit for hit in seen if hit is not None)
    FILE.write_text("".join(json.dumps(asdict(each)) + "\n" for each in asked), encoding="utf-8")


if __name__ == "__main__":
    main()
