"""Why SGLang's hit is not longer: the ceilings of its rule in the order in which they lower the reuse."""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.laws.base import Expectation
from reference_engine.laws.parts.chained import Tokens
from reference_engine.laws.parts.history import History
from reference_engine.laws.sglang.config import SglangConfig
from vocabulary.engine import TokenRequest
from vocabulary.ledger import Cause, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What one lookup found, in tokens."""

    limit: int
    """Tokens that were looked up."""
    matched: int
    """Depth that full attention matched, in whole pages."""
    hit: int
    """Deepest boundary that every layer group can resume at."""
    junction: int
    """Boundary that the next sibling will find."""


def explain(
    config: SglangConfig, history: History, published: History, ids: Tokens, request: TokenRequest, looked_up: Lookup
) -> Expectation:
    """The expectation of a request; `published` is what the tree was ever given, the others' sequences included."""
    length, page = request.prompt_len, config.page
    # A running request may have published more than the history of computed prompts knows.
    lcp = max(history.lcp(ids, request.namespace), looked_up.hit)
    limited = min(lcp, looked_up.limit)
    paired = max(limited - 1, 0) if config.bigram else limited
    ceilings = [
        (Cause.NOVEL, max(lcp, history.lcp_elsewhere(ids, request.namespace))),
        (Cause.NAMESPACE, lcp),
        (Cause.LAST_TOKEN, length - 1),
        (Cause.DISABLED, limited),
        (Cause.SUCCESSOR, paired),
        (Cause.GRANULE, paired // page * page),
        (Cause.EVICTED, looked_up.matched),
    ]
    if not config.plain:
        lacking = Cause.NO_STATE if config.strategy is not None else Cause.WINDOW
        known = max(min(published.lcp(ids, request.namespace), limited) - config.bigram, 0) // page * page
        # What an insertion left out because no state or window would have belonged to it.
        ceilings.insert(-1, (lacking, max(known, looked_up.matched)))
        ceilings.append((lacking, looked_up.hit))
    return Expectation(
        hit_len=looked_up.hit,
        position_start=looked_up.hit,
        ledger=Ledger.waterfall(length, ceilings),
        per_group={name: looked_up.matched if full else looked_up.hit for name, full in config.full_groups.items()},
        junction=looked_up.junction,
    )
