"""What a run writes down. Pydantic models are the schema; `docs/schema.md` and the JSON Schema come from them.

Lengths are in tokens, times in nanoseconds. `null` means that the engine did not say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vocabulary.engine import Fidelity, Mode
from vocabulary.errors import ExitCode
from vocabulary.ledger import Cause, Interval, check_partition

REQUEST_SCHEMA: Literal["hitparity.request/1"] = "hitparity.request/1"
CELL_SCHEMA: Literal["hitparity.cell/1"] = "hitparity.cell/1"
RUN_SCHEMA: Literal["hitparity.run/1"] = "hitparity.run/1"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class FindingKind(StrEnum):
    """What can be wrong with an observation."""

    UNEXPLAINED = "unexplained"
    """The engine reused less than its law says."""
    SURPLUS = "surplus"
    """The engine reused more than its law allows."""
    APPROXIMATE = "approximate"
    """The hit is longer than the true common prefix with anything computed before, or part of it was computed behind
    another prefix and moved."""
    FORBIDDEN_HIT = "forbidden_hit"
    """A hit where the workload allows none: under another salt or adapter, on rearranged tokens, after a reset."""
    UNBACKED = "unbacked"
    """The hit is longer than what some group of layers really holds: the model computes on other memory."""
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
    """What is wrong."""
    detail: str
    """A sentence with the numbers."""


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
    """Name and version of this record."""
    cell: str
    """The cell it belongs to: a folder of the run."""
    request_id: str
    """Unique in the run."""
    index: int
    """Position in the cell, sentinels and controls included."""
    role: Role
    """Why it was sent; tables and sums count probes only."""
    label: str
    """The workload's name for the prompt."""
    repetition: int
    """How many times this prompt was sent before in this cell since the last reset."""
    engine: str
    """The engine's name; of a prediction, the engine whose law it is."""
    engine_label: str
    """The configuration's name in tables."""
    version: str
    """As the engine reports it."""
    mode: Mode | None
    """How the engine was reached; null: no engine ran."""
    fidelity: Fidelity
    """What stands behind the answer."""
    device: str
    """Where the model ran."""
    law: str | None
    """The law behind `expected_*`; null: none covers this engine as configured."""
    emulated: bool
    """True where the reference engine follows another system's law."""
    model: str
    """Name or folder of the model."""
    workload: str
    """The workload's name in the experiment."""
    namespace: str | None
    """Cache salt; null: none was sent."""
    lora: str | None = None
    """Adapter; null: none was asked for. Only laws and lookups know any."""
    media: tuple[tuple[str, int, int], ...] = ()
    """Images and other items: identifier, first position, positions. Only laws and lookups know any."""
    together: int = 1
    """Requests sent at the same moment, this one included. With more than one nothing is predicted (`law`) until the
    next reset: laws state serial order."""
    prompt_sha256: str
    """Of the IDs as little-endian 32-bit integers; at an item's positions mixed with its identifier."""
    prompt_len: int
    """Tokens sent."""
    lcp_len: int
    """Longest common prefix with anything computed in this namespace since the last reset, or sent together with it."""
    hit_len: int | None
    """Tokens the engine says it took from its cache."""
    hit_source: str
    """The field or counter `hit_len` was read from."""
    position_start: int | None
    """First position the model computed, observed apart from `hit_len` where possible."""
    position_source: str
    """Where `position_start` was observed; "none" where the engine shows it nowhere."""
    tail_len: int | None
    """Prompt tokens computed: `prompt_len - position_start` (or `- hit_len` where no start is shown); null where the
    ledger is empty."""
    steps: tuple[tuple[int, int], ...] | None
    """Prefill steps as half-open spans of positions."""
    sent_ns: int
    """Monotonic clock; only differences within one machine mean anything."""
    ttft_ns: int | None
    """Request sent to first generated token received; null where nothing was generated."""
    total_ns: int
    """Request sent to reply complete."""
    output_ids: tuple[int, ...]
    """Generated token IDs; empty where contents are left out."""
    output_sha256: str | None = None
    """Of the generated IDs, decimal, between commas; only where contents are left out (`contents = "hashes"`)."""
    first_logprob: float | None
    """Natural-log probability of the first generated token."""
    expected_hit_len: int | None
    """Hit by the law."""
    expected_position_start: int | None
    """Start by the law."""
    ledger: tuple[Interval, ...]
    """Partition of `[0, prompt_len)`; empty where neither hit nor start is known, or one of them is impossible."""
    junction: int | None
    """Boundary that only the next sibling can use, by the law."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with this request."""
    native: dict[str, Any] = Field(default_factory=dict)
    """The engine's own fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _ledger_is_partition(self) -> RequestRecord:
        if self.ledger:
            check_partition(self.prompt_len, self.ledger)
        return self

    @property
    def answer(self) -> str:
        """What tells generated sequences apart, with and without their contents."""
        return self.output_sha256 or answer_sha256(self.output_ids)

    def by_cause(self) -> dict[Cause, int]:
        """Tokens per cause."""
        totals: dict[Cause, int] = {}
        for entry in self.ledger:
            totals[entry.cause] = totals.get(entry.cause, 0) + entry.end - entry.start
        return totals


def answer_sha256(ids: Sequence[int]) -> str:
    """Of what an engine says it generated, possible IDs or not."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


class CellStatus(StrEnum):
    """How a cell ended."""

    COMPLETE = "complete"
    """Every request was sent; a resumed run leaves it alone."""
    INTERRUPTED = "interrupted"
    """A signal ended the run; the lines so far are kept."""
    FAILED = "failed"
    """The engine did not start, died, or refused; `why` says which."""


class CellManifest(_Record):
    """One cell: its configuration, the engine's facts, and how it ended."""

    schema_id: Literal["hitparity.cell/1"] = Field(CELL_SCHEMA, alias="schema")
    """Name and version of this record."""
    cell: str
    """Folder name, unique in the run."""
    status: CellStatus
    """How the cell ended."""
    why: str
    """Reason of an interruption or failure; empty for a complete cell."""
    exit_code: ExitCode
    """Exit code that this cell alone gives a run; 0 for a complete cell without findings."""
    valid: bool
    """False: the numbers must not be used for verdicts; `findings` say why."""
    findings: tuple[Finding, ...]
    """Findings about the cell as a whole (reset, control arm)."""
    engine: str
    """The engine asked for."""
    engine_label: str
    """The configuration's name in tables."""
    configuration: dict[str, Any]
    """The engine entry as asked for."""
    facts: dict[str, Any] | None
    """What the started engine said about itself."""
    model: str
    """Name or folder of the model."""
    model_fingerprint: str
    """SHA-256 over the model's files; empty if it was not opened."""
    workload: str
    """The workload's name in the experiment."""
    family: str
    """The workload's family."""
    parameters: dict[str, Any]
    """The family's parameters, defaults included."""
    seed: int
    """Of the workload's token IDs."""
    requests: int
    """Lines in requests.jsonl."""
    engine_log: str
    """Path of the engine's log, relative to the run folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class RunManifest(_Record):
    """One run: what it was made from and the machine it ran on."""

    schema_id: Literal["hitparity.run/1"] = Field(RUN_SCHEMA, alias="schema")
    """Name and version of this record."""
    experiment: str
    """The experiment's name."""
    experiment_digest: str
    """SHA-256 of the checked experiment; a run resumes only under the same one."""
    configuration: dict[str, Any]
    """The whole experiment after checking; values of environment variables are left out."""
    hitparity: str
    """Version of hitparity."""
    started: str
    """UTC, ISO 8601."""
    machine: dict[str, Any]
    """Processor, cores, memory, system and Python; null where unknown."""
    cells: tuple[str, ...]
    """All planned cells, in order."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def json_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of every record, by schema name."""
    records: dict[str, type[BaseModel]] = {
        REQUEST_SCHEMA: RequestRecord,
        CELL_SCHEMA: CellManifest,
        RUN_SCHEMA: RunManifest,
    }
    return {name: model.model_json_schema(by_alias=True) for name, model in records.items()}
