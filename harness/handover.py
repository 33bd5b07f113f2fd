"""The hand-over questions: what lies between "found in the cache" and the first computed token, system by system.

Answers are data beside each adapter or law (`handover.toml`), with the file of the engine they were taken from. The
formulas are filled in with the numbers of a prompt by the system's law.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from reference_engine.laws.base import Law
from reference_engine.laws.parts.history import History
from reference_engine.laws.registry import make_law
from vocabulary.bounded import read_toml
from vocabulary.engine import TokenRequest
from vocabulary.errors import UsageError

ROOT = Path(__file__).parents[1]
SOURCES = {
    "vllm": "adapters/vllm",
    "vllm-ascend": "adapters/vllm_ascend_lookup",
    "sglang": "adapters/sglang",
    "llama.cpp": "adapters/llama_cpp",
    "llama-cpp-python": "adapters/llama_cpp_python",
    "tensorrt-llm": "reference_engine/laws/tensorrt_llm",
    "deepinfer": "reference_engine/laws/deepinfer",
    "reference": "adapters/reference",
}
"""System to the folder of its `handover.toml`, in the order of the table."""


class Question(StrEnum):
    """What is asked of every system."""

    MATCH = "match"
    """Who matches, and by what?"""
    ALIGN = "align"
    """How is the hit aligned and capped?"""
    REFERENCE = "reference"
    """How are hit blocks referenced?"""
    POSITION = "position"
    """Where do positions start?"""
    READ_ONLY = "read_only"
    """How does the attention kernel learn what is read-only?"""
    STILL_COMPUTED = "still_computed"
    """What is still computed on a full hit?"""
    COMPLETE = "complete"
    """Windows and states: is the hit segment still complete?"""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(_Strict):
    """One system's answer to one question."""

    question: Question
    text: Annotated[str, Field(min_length=20)]
    formula: str | None = None
    numbers: str | None = None
    """The formula with places for fields of `Numbers`."""
    source: str
    """File of the engine, within its release."""
    evidence: Literal["executed", "read", "assumed"]
    """Seen while the engine's own code ran, read in its source, or neither."""

    @field_validator("numbers")
    @classmethod
    def _places_exist(cls, text: str | None) -> str | None:
        known = {field.name for field in fields(Numbers)}
        for _, place, _, _ in string.Formatter().parse(text or ""):
            if place is not None and place not in known:
                raise ValueError(f"no number {place!r}; there are: {', '.join(sorted(known))}")
        return text


class System(_Strict):
    """One system's answers, in the order of `Question`."""

    system: str
    release: str
    """The release the answers were taken from."""
    law: str
    """The law that fills in the formulas unless another version is asked for."""
    answers: tuple[Answer, ...]

    @model_validator(mode="after")
    def _all_questions_in_order(self) -> System:
        if [answer.question for answer in self.answers] != list(Question):
            raise ValueError(f"{self.system}: one answer to each question is needed, in order: {', '.join(Question)}")
        return self

    def answer(self, question: Question) -> Answer:
        """The answer to one question."""
        return self.answers[list(Question).index(question)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What formulas are filled in with; tokens unless said otherwise."""

    law: str
    length: int
    lcp: int
    """Longest common prefix with anything computed before."""
    cap: int
    """length - 1"""
    granule: int
    hit: int
    start: int
    tail: int
    rows: str
    """Positions computed."""
    keys: int
    """Keys that the first computed row sees with full attention: its own and all before it."""
    kept: str
    """Positions taken from the cache."""
    hit_blocks: int
    """Whole granules of the hit."""
    hit_part: int
    """Tokens of the hit beyond them."""
    prompt_blocks: int
    """Granules that the prompt touches."""
    new_blocks: int
    """Granules not wholly in the hit."""
    prompt_blocks_128: int

    def fill(self, text: str) -> str:
        """A template with the numbers in it."""
        return text.format_map({name: _number(value) for name, value in asdict(self).items()})


def load(system: str) -> System:
    """Answers of one system; UsageError for an unknown one or a file that does not hold together."""
    if system not in SOURCES:
        raise UsageError(f"no hand-over answers for {system!r}; there are: {', '.join(SOURCES)}")
    path = ROOT / SOURCES[system] / "handover.toml"
    try:
        loaded = System.model_validate(read_toml(path))
    except (UsageError, ValidationError) as error:
        raise UsageError(f"{path.relative_to(ROOT)}: {error}") from None
    if loaded.system != system:
        raise UsageError(f"{path.relative_to(ROOT)}: is about {loaded.system!r}, not {system!r}")
    return loaded


def serve(law: Law, requests: Sequence[TokenRequest], outputs: Sequence[Sequence[int]]) -> Numbers:
    """Send the requests one after the other; the numbers of the last one.

    Raises what the law raises: LawDoesNotCover, RequestRefused.
    """
    history = History()
    for request, output in zip(requests[:-1], outputs[:-1], strict=True):
        law.send(request)
        law.finish(request, output)
        history.add(request.computed(output))
    last = requests[-1]
    expectation = law.send(last)
    law.finish(last, outputs[-1])
    length, hit, granule = last.prompt_len, expectation.hit_len, law.granule
    prompt_blocks = -(-length // granule)
    return Numbers(
        law=law.id,
        length=length,
        lcp=history.lcp(last.array),
        cap=length - 1,
        granule=granule,
        hit=hit,
        start=expectation.position_start,
        tail=length - expectation.position_start,
        rows=f"{_number(expectation.position_start)} ... {_number(length - 1)}" if length > hit else "none",
        keys=min(expectation.position_start + 1, length),
        kept=f"0 ... {_number(hit - 1)}" if hit else "none",
        hit_blocks=hit // granule,
        hit_part=hit % granule,
        prompt_blocks=prompt_blocks,
        new_blocks=prompt_blocks - hit // granule,
        prompt_blocks_128=-(-length // 128),
    )


def law_of(system: System, law_id: str | None, options: Mapping[str, Any]) -> Law:
    """The law that fills in a system's formulas; `law_id` asks for another version than its own."""
    return make_law(law_id or system.law, options)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
