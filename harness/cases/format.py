"""What a golden case is. docs/cases.md describes the file for those who write one."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator

from harness.cases.tokens import Tokens
from harness.records import FindingKind
from vocabulary.engine import Feature, Fidelity, TokenRequest
from vocabulary.groups import parse_groups

MAX_REQUESTS = 10_000
UNSTATED_OUTPUT = 2**31 - 2
"""The one generated ID of a request whose output is not stated; it continues no prompt."""

TokenField = Annotated[Tokens, BeforeValidator(Tokens.parse), PlainSerializer(Tokens.to_json)]
Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class CaseRequest(_Strict):
    """One request and what its source says about it; what is not stated is not checked."""

    prompt: TokenField
    output: TokenField | None = None
    """IDs generated for it; None: one that continues no prompt."""
    hit_len: Count | None = None
    """Tokens the engine reports as taken from its cache."""
    positive: bool = False
    """The source says that it hit, and not how many tokens."""
    position_start: Count | None = None
    """First position computed."""
    backed_len: Count | None = None
    """Tokens below which every layer group really holds what the hit claims."""
    namespace: str | None = None
    features: tuple[Feature, ...] = ()
    lora: str | None = None
    """Adapter as "name" or "name@path"."""
    external_hit: Count | None = None
    """Tokens that an external store injects (DeepInfer)."""
    fork_of: Count | None = None
    """Number of the earlier request, counted from 0, that this one branches from (DeepInfer)."""
    findings: tuple[FindingKind, ...] = ()
    """Findings that must appear."""
    logit_shift: Annotated[float, Field(gt=0)] | None = None
    """Largest difference of a logit to a cold run of the prompt must be greater than this (served only)."""
    note: str | None = None

    @field_validator("prompt")
    @classmethod
    def _not_empty(cls, prompt: Tokens) -> Tokens:
        if not prompt.ranges:
            raise ValueError("a prompt has at least one token")
        return prompt

    @property
    def output_ids(self) -> tuple[int, ...]:
        """The generated IDs."""
        return (UNSTATED_OUTPUT,) if self.output is None else self.output.ids

    @property
    def stated(self) -> bool:
        """Whether anything can differ."""
        numbers = (self.hit_len, self.position_start, self.backed_len, self.logit_shift)
        return self.positive or bool(self.findings) or any(number is not None for number in numbers)


class Case(_Strict):
    """Requests sent one after the other on an empty cache."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    source: str
    """Where the hits come from: repository and number, or system, version and how it was asked."""
    engine: str
    """Law id, such as "vllm@0.30"."""
    groups: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)] = ("full",)
    """Layer groups, such as ["full:16", "swa:16:64"]."""
    options: dict[str, Any] = Field(default_factory=dict)
    """By the engine's own names."""
    requests: Annotated[tuple[CaseRequest, ...], Field(min_length=1, max_length=MAX_REQUESTS)]
    by: Fidelity | None = None
    """The level it is made for; None: any."""
    note: str | None = None

    @field_validator("groups")
    @classmethod
    def _groups_parse(cls, groups: tuple[str, ...]) -> tuple[str, ...]:
        parse_groups(groups)
        return groups

    @property
    def law_options(self) -> dict[str, Any]:
        """Options as laws and lookups take them."""
        return {"groups": list(self.groups), **self.options}

    def token_request(self, index: int) -> TokenRequest:
        """Request `index` as it is sent; its id is the case's and its number."""
        request = self.requests[index]
        return TokenRequest(
            request_id=f"{self.id}#{index}",
            ids=request.prompt.ids,
            max_tokens=len(request.output_ids),
            namespace=request.namespace,
            features=frozenset(request.features),
            lora=request.lora,
            external_hit=request.external_hit,
            fork_of=None if request.fork_of is None else f"{self.id}#{request.fork_of}",
        )

    def to_line(self) -> str:
        """One line of a case file; keys that say nothing are left out."""
        requests = [request.model_dump(mode="json", exclude_defaults=True) for request in self.requests]
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude={"requests"})
        fields["groups"] = list(self.groups)
        return json.dumps(fields | {"requests": requests}, ensure_ascii=False)
