"""Whether a law takes options."""

from __future__ import annotations

from typing import Any

from reference_engine.laws.registry import make_law
from vocabulary.errors import LawDoesNotCover


def refuses(law_id: str, **options: Any) -> bool:
    """UsageError for an option that the law does not read: a slip in a test is no refusal."""
    try:
        make_law(law_id, options)
    except LawDoesNotCover:
        return True
    return False
