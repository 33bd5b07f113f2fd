"""What every family's parameters have in common."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from vocabulary.errors import UsageError
from workloads.lengths import Length, Scale

Count = Annotated[int, Field(ge=1, le=10_000)]


class Parameters(BaseModel):
    """Base of a family's parameters: frozen, unknown keys rejected; relative lengths stand for `NOMINAL` until `at`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)

    max_tokens: Length = 1
    """Tokens generated per request."""
    ids: Literal["random", "runs"] = "random"
    """"runs": prompts are stretches of one list of IDs, so that a long one costs no memory before it is sent."""

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(value)
        made._given = dict(value) if isinstance(value, dict) else dict(made._given)
        return made

    @property
    def given(self) -> dict[str, Any]:
        """What was written, relative lengths as texts."""
        return dict(self._given)

    def at(self, scale: Scale) -> Self:
        """These parameters on an engine; UsageError where they mean nothing there."""
        try:
            return self.model_validate(self._given, context=scale)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False)[0]
            key = ".".join(str(part) for part in problem["loc"])
            message = problem["msg"].removeprefix("Value error, ")
            raise UsageError(f"workload parameter {key or 'combination'}: {message}") from None
