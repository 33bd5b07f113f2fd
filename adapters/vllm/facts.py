"""What a started vLLM says, completed with the law that covers it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from adapters.checked import facts_from
from adapters.vllm.law import law_for, limits
from vocabulary.engine import EngineFacts, Mode
from vocabulary.errors import LawDoesNotCover


def complete_facts(raw: Mapping[str, Any], mode: Mode, notes: tuple[str, ...]) -> EngineFacts:
    """EngineFacts from the engine's own fields; where no law covers it, a note says why."""
    law: str | None = None
    law_options: dict[str, Any] = {}
    facts = facts_from(raw, mode=mode)
    try:
        law, law_options = law_for(facts.version, facts.options, facts.groups)
        notes = (*notes, *limits(facts.options))
    except LawDoesNotCover as error:
        notes = (*notes, str(error))
    return dataclasses.replace(facts, law=law, law_options=law_options, notes=notes)
