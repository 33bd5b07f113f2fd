"""vLLM's laws.

switches.py   what differs between releases
plan.py       options to the numbers of one configuration, or a refusal
find.py       the hit
tables.py     block tables: take, publish, retire, give back
steps.py      where chunks end
explain.py    ledger, each group alone, junction
law.py        the life cycle
serial.py     full attention alone, for a trace's prompts one after another
block_size.py block size of hybrid models
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.laws.base import Law
from reference_engine.laws.entry import LawEntry
from reference_engine.laws.vllm.law import VllmLaw
from reference_engine.laws.vllm.plan import resolve
from reference_engine.laws.vllm.switches import VLLM, Switches

COVERS = (
    "full attention, sliding window and recurrent states (align) in any number of groups; EAGLE and MTP; "
    "requests one at a time where groups differ"
)


def entry(switches: Switches) -> LawEntry:
    """The registry entry of one release."""

    def build(options: Mapping[str, Any], pool_tokens: int | None) -> Law:
        return VllmLaw(resolve(switches, options, pool_tokens))

    return LawEntry(switches.law_id, COVERS, switches.options, build)


ENTRIES = tuple(entry(switches) for switches in VLLM)
