"""What every family's parameters have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Length = Annotated[int, Field(ge=1, le=1_000_000)]
Count = Annotated[int, Field(ge=1, le=10_000)]


class Parameters(BaseModel):
    """Base of a family's parameters: frozen, unknown keys rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Tokens generated per request."""
