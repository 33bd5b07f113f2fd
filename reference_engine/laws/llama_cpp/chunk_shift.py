"""Moving chunks of a slot's tokens to other positions (`--cache-reuse`): a hit that is no common prefix.

Source: llama.cpp tools/server/server-context.cpp at the commit inside llama-cpp-python 0.3.36 (`update_slots`),
executed with b11549. Behind the common prefix the server walks through the slot's tokens; wherever at least
`n_cache_reuse` of them in a row equal the next tokens of the prompt, they are moved there, by rotating their keys.
The prompt is never skipped over: deletions are bridged, insertions and replacements are not.
"""

from __future__ import annotations

import numpy as np

from reference_engine.laws.base import Ids
from reference_engine.laws.parts.history import common_prefix


def chunks(held: Ids, ids: Ids, common: int, least: int) -> list[tuple[int, int, int]]:
    """What is moved, as (from, to, length): `to` begins at `common` and has no gaps.

    `held` are the slot's tokens, `ids` the prompt's, `common` is their common prefix, `least` is `n_cache_reuse`.
    """
    found = list[tuple[int, int, int]]()
    at, source = common, common
    while (start := _next_run(held, source, ids[at : at + least], least)) is not None:
        run = common_prefix(held[start:], ids[at:])
        found.append((start, at, run))
        source, at = start + run, at + run
    return found


def _next_run(held: Ids, source: int, wanted: Ids, least: int) -> int | None:
    """Where `wanted`, the next `least` prompt tokens, next occurs at or behind `source`."""
    if len(wanted) < least:
        return None
    for start in np.flatnonzero(held[source : len(held) - least + 1] == wanted[0]) + source:
        if np.array_equal(held[start : start + least], wanted):
            return int(start)
    return None
