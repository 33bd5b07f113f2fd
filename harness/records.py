"""What a run writes down. Pydantic models are the schema; `docs/schema.md` and the JSON Schema come from them.

Lengths are in tokens, times in nanoseconds. `null` means that the engine did not say.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vocabulary.engine import Fidelity, Mode
from vocabulary.ledger import Cause, Interval, Ledger

REQUEST_SCHEMA: Literal["hitparity.request/1"] = "hitparity.request/1"
CELL_SCHEMA: Literal["hitparity.cell/1"] = "hitparity.cell/1"
RUN_SCHEMA: Literal["hitparity.run/1"] = "hitparity.run/1"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FindingKind(StrEnum):
    """What can be wrong with an observation."""

    UNEXPLAINED = "unexplained"
    """The engine reused less than its law says."""
    SURPLUS = "surplus"
    """The engine reused more than its law allows."""
    APPROXIMATE = "approximate"
    """The hit is longer than the true common prefix with anything computed before."""
    OUT_OF_RANGE = "out_of_range"
    """Hit or position start outside what is possible for this prompt."""
    SOURCES_DISAGREE = "sources_disagree"
    """Two sources of one number differ (reported hit and observed position start)."""
    WARM_DIFFERS = "warm_differs"
    """Output with a hit differs from the cold output of the same prompt."""
    COLD_DIFFERS = "cold_differs"
    """Two cold runs of one prompt differ: the engine is not deterministic, warm comparisons are void."""
    RESET_FAILED = "reset_failed"
    """A prompt hit after a reset that should have emptied the cache."""
    NO_WARM_HIT = "no_warm_hit"
    """A prompt sent twice in a row did not hit: no warm claim can be made."""
    PROMPT_MISCOUNT = "prompt_miscount"
    """The engine counted another number of prompt tokens than were sent."""


INVALIDATING = frozenset({FindingKind.RESET_FAILED, FindingKind.PROMPT_MISCOUNT, FindingKind.OUT_OF_RANGE})
"""Findings that make a cell's numbers unfit for any verdict."""


class Finding(_Record):
    """One thing that is not as it should be."""

    kind: FindingKind
    detail: str
    """A sentence with the numbers."""


class Entry(_Record):
    """One interval of a ledger."""

    start: int
    end: int
    cause: Cause


class Role(StrEnum):
    """Why a request was sent."""

    PROBE = "probe"
    """Part of the workload."""
    SENTINEL = "sentinel"
    """Proves that a reset empties the cache and that a repeat hits."""
    CONTROL = "control"
    """Cold run of a prompt that was served warm."""


class RequestRecord(_Record):
    """One request to one engine: what was asked, what was observed, what the law says, and why."""

    schema_id: Literal["hitparity.request/1"] = Field(REQUEST_SCHEMA, alias="schema")
    cell: str
    request_id: str
    index: int
    """Position in the cell, sentinels and controls included."""
    role: Role
    label: str
    """The workload's name for the prompt."""
    repetition: int
    """How many times this prompt was sent before in this cell since the last reset."""
    engine: str
    engine_label: str
    """The configuration's name in tables."""
    version: str
    mode: Mode | None
    fidelity: Fidelity
    device: str
    law: str | None
    """The law behind `expected_*`; null: none covers this engine as configured."""
    emulated: bool
    """True where the reference engine follows another system's law."""
    model: str
    workload: str
    namespace: str | None
    prompt_sha256: str
    """Of the IDs as little-endian u32."""
    prompt_len: int
    lcp_len: int
    """Longest common prefix with anything computed in this namespace since the last reset."""
    hit_len: int | None
    hit_source: str
    position_start: int | None
    position_source: str
    tail_len: int | None
    """Prompt tokens computed: `prompt_len - position_start` (or `- hit_len` where no start is shown)."""
    steps: tuple[tuple[int, int], ...] | None
    """Prefill steps as half-open spans of positions."""
    sent_ns: int
    """Monotonic clock; only differences within one machine mean anything."""
    ttft_ns: int | None
    total_ns: int
    output_ids: tuple[int, ...]
    first_logprob: float | None
    expected_hit_len: int | None
    expected_position_start: int | None
    ledger: tuple[Entry, ...]
    """Partition of `[0, prompt_len)`; empty only where neither hit nor start is known."""
    junction: int | None
    """Boundary that only the next sibling can use, by the law."""
    findings: tuple[Finding, ...] = ()
    native: dict[str, Any] = Field(default_factory=dict)
    """The engine's own fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _ledger_is_partition(self) -> RequestRecord:
        if self.ledger:
            Ledger(self.prompt_len, tuple(Interval(e.start, e.end, e.cause) for e in self.ledger))
        return self

    def by_cause(self) -> dict[Cause, int]:
        """Tokens per cause."""
        totals: dict[Cause, int] = {}
        for entry in self.ledger:
            totals[entry.cause] = totals.get(entry.cause, 0) + entry.end - entry.start
        return totals


class CellStatus(StrEnum):
    """How a cell ended."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class CellManifest(_Record):
    """One cell: its configuration, the engine's facts, and how it ended."""

    schema_id: Literal["hitparity.cell/1"] = Field(CELL_SCHEMA, alias="schema")
    cell: str
    status: CellStatus
    why: str
    """Reason of an interruption or failure; empty for a complete cell."""
    valid: bool
    """False: the numbers must not be used for verdicts; `findings` say why."""
    findings: tuple[Finding, ...]
    """Findings about the cell as a whole (reset, control arm)."""
    engine: str
    engine_label: str
    configuration: dict[str, Any]
    """The engine entry as asked for."""
    facts: dict[str, Any] | None
    """What the started engine said about itself."""
    model: str
    model_fingerprint: str
    workload: str
    family: str
    parameters: dict[str, Any]
    seed: int
    requests: int
    """Lines in requests.jsonl."""
    engine_log: str
    """Path of the engine's log, relative to the run folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class RunManifest(_Record):
    """One run: what it was made from and the machine it ran on."""

    schema_id: Literal["hitparity.run/1"] = Field(RUN_SCHEMA, alias="schema")
    experiment: str
    experiment_digest: str
    configuration: dict[str, Any]
    """The whole experiment after checking; values of environment variables are left out."""
    hitparity: str
    """Version of hitparity."""
    started: str
    """UTC, ISO 8601."""
    machine: dict[str, Any]
    cells: tuple[str, ...]

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def json_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of every record, by schema name."""
    records: dict[str, type[BaseModel]] = {
        REQUEST_SCHEMA: RequestRecord,
        CELL_SCHEMA: CellManifest,
        RUN_SCHEMA: RunManifest,
    }
    return {name: model.model_json_schema(by_alias=True) for name, model in records.items()}
