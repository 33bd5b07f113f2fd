"""One law on one trace: what is asked, and what came of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.simulate.trace_file import TraceFile
from vocabulary.ledger import Cause

SCHEMA = "hitparity.simulation/1"
RECOMPUTED_ANYWAY = frozenset({Cause.REUSED, Cause.NOVEL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell of a sweep."""

    trace: TraceFile
    law: str
    options: Mapping[str, Any] = field(default_factory=dict)
    outputs: bool = False
    """Whether answers of the trace's lengths are generated and kept; otherwise one token each, which no law keeps."""
    bucket_s: int | None = None
    """Width of the totals over time in seconds of arrival; None: `bucket_requests` requests each."""
    bucket_requests: int = 1000
    change: str | None = None
    """What this job changes against `base`, in words; None: a job of its own."""
    cost: str | None = None
    """What the change costs, in words."""
    base: str | None = None
    """`cell` of the job it is compared with."""

    @property
    def label(self) -> str:
        """Law and options in one line."""
        options = " ".join(f"{key}={_text(value)}" for key, value in self.options.items())
        return f"{self.law} {options}".rstrip()

    @property
    def cell(self) -> str:
        """Name of the cell's folder: readable, and different for different work."""
        asked = [self.law, dict(self.options), self.outputs, self.bucket_s, self.bucket_requests]
        asked += [self.trace.limit, self.trace.divide, self.trace.block_len]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9.=@-]+', '_', self.label)[:80].strip('_')}-{digest}"


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else json.dumps(value).strip('"')


@dataclass(slots=True, kw_only=True)
class Totals:
    """Tokens of some requests, by cause."""

    requests: int = 0
    """Requests that the law served."""
    refused: int = 0
    """Requests that it refused; their tokens are in no other field."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Generated and kept, where `outputs` was asked for."""
    by_cause: dict[Cause, int] = field(default_factory=dict)

    @property
    def reused(self) -> int:
        """Tokens taken from the cache."""
        return self.by_cause.get(Cause.REUSED, 0)

    @property
    def recomputed(self) -> int:
        """Tokens computed."""
        return self.prompt_tokens - self.reused

    @property
    def hit_rate(self) -> float | None:
        """Reused over prompt tokens; None without tokens."""
        return self.reused / self.prompt_tokens if self.prompt_tokens else None

    def add(self, other: Totals) -> None:
        """Take the other's numbers in."""
        self.requests += other.requests
        self.refused += other.refused
        self.prompt_tokens += other.prompt_tokens
        self.output_tokens += other.output_tokens
        for cause, tokens in other.by_cause.items():
            self.by_cause[cause] = self.by_cause.get(cause, 0) + tokens


@dataclass(slots=True, kw_only=True)
class Bucket(Totals):
    """Totals of a stretch of the trace."""

    start: int
    """In seconds of arrival, or the number of the first request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What one job found; the same wherever and however often it runs."""

    schema: str = SCHEMA
    law: str
    options: dict[str, Any]
    outputs: bool
    change: str | None = None
    cost: str | None = None
    base: str | None = None
    block_len: int
    """Tokens in a block of the trace."""
    blind_below: str
    chained: bool
    """Whether the law read blocks; False: it was given tokens drawn for them."""
    malformed: int
    split_ids: int
    first_refusal: str | None = None
    totals: Totals
    buckets: list[Bucket]
