"""What a started vLLM says, completed with the law that covers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.vllm.law import law_for, limits
from adapters.worker import facts_from
from vocabulary.engine import EngineFacts, Mode
from vocabulary.errors import LawDoesNotCover


def complete_facts(raw: Mapping[str, Any], mode: Mode, notes: tuple[str, ...]) -> EngineFacts:
    """EngineFacts from the engine's own fields; where no law covers it, a note says why."""
    law: str | None = None
    law_options: dict[str, Any] = {}
    try:
        law, law_options = law_for(raw["version"], raw["options"], tuple(raw["groups"]))
        notes = (*notes, *limits(raw["options"]))
    except LawDoesNotCover as error:
        notes = (*notes, str(error))
    return facts_from(raw, mode=mode, law=law, law_options=law_options, notes=notes)
