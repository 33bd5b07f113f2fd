"""Answers of the engines' own cache code to random sequences, recorded so that laws meet them without an engine.

The sequences are those of `hitparity fuzz` (harness/fuzz): lookups, and llama.cpp served. To record anew, with the
environments built, all or those whose law ids begin so:

    python -m tests.laws.recorded_answers [vllm@0.33]
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cases.format import Case
from harness.cases.served import ServedSubject
from harness.cases.subjects import LawSubject, LookupSubject, Outcome
from harness.fuzz.campaign import draw
from harness.fuzz.configurations import Configuration, configurations
from harness.fuzz.duel import differing
from reference_engine.laws.base import Law
from reference_engine.laws.registry import make_law
from vocabulary.engine import Feature, Fidelity, TokenRequest
from vocabulary.errors import LawDoesNotCover, RequestRefused, UsageError

FILE = Path(__file__).parent / "golden" / "recorded_answers.jsonl"
SEED, SEQUENCES = 20, 4
"""`SEQUENCES`: of each configuration, and at least one of each of its variants."""
LEAST, MOST = 4, 14
"""Answers; shorter sequences, which the engine or the law refuses early, are not kept."""


def _small(name: str, groups: tuple[str, ...], *variants: dict[str, Any]) -> Configuration:
    options = {"chunked_prefill_size": 128, "max_total_tokens": 1408}
    return Configuration(
        name=f"{name}, small pool", engine="sglang@0.5.23", groups=groups, options=options, variants=variants,
        longest=600, features=(Feature.PROMPT_LOGPROBS,),
    )  # fmt: skip


SMALL_POOLS = (
    _small("full", ("full",), {"page_size": 1}, {"page_size": 16, "max_total_tokens": 1024}, {"page_size": 64}),
    _small("full+swa", ("full", "swa:128"), {"page_size": 1}, {"page_size": 16}),
    _small(
        "full+gdn",
        ("full", "gdn"),
        {"page_size": 1, "mamba_radix_cache_strategy": "no_buffer", "max_mamba_cache_size": 10},
        {"page_size": 16, "mamba_radix_cache_strategy": "extra_buffer", "max_mamba_cache_size": 14},
    ),
)
"""SGLang's in little room; those of vLLM are among the fuzzer's."""


def _tight(name: str, groups: tuple[str, ...], *variants: dict[str, Any], what: str = "pool") -> Configuration:
    return Configuration(
        name=f"{name}, tight {what}", engine="sglang@0.5.23", groups=groups, options={}, variants=4 * variants,
        longest=600, longest_output=260, features=(Feature.PROMPT_LOGPROBS,),
    )  # fmt: skip


TIGHT_POOLS = (
    _tight(
        "full",
        ("full",),
        {"page_size": 1, "max_total_tokens": 700},
        {"page_size": 1, "max_total_tokens": 900, "chunked_prefill_size": 100, "speculative_algorithm": "EAGLE"},
        {"page_size": 16, "max_total_tokens": 1008, "chunked_prefill_size": 100},
        {"page_size": 16, "max_total_tokens": 800, "chunked_prefill_size": 128, "speculative_algorithm": "EAGLE"},
    ),
    _tight(
        "full+swa",
        ("full", "swa:64"),
        {"page_size": 1, "max_total_tokens": 1100},
        {"page_size": 1, "max_total_tokens": 1100, "swa_full_tokens_ratio": 0.3, "chunked_prefill_size": 128},
        {"page_size": 16, "max_total_tokens": 1200, "swa_full_tokens_ratio": 0.4, "chunked_prefill_size": 96},
        {"page_size": 1, "max_total_tokens": 1300, "chunked_prefill_size": 200, "speculative_algorithm": "EAGLE"},
        {"page_size": 16, "max_total_tokens": 1300, "speculative_algorithm": "EAGLE"},
    ),
    _tight(
        "full+swa",
        ("full", "swa:64"),
        {"page_size": 1, "max_total_tokens": 1000, "swa_full_tokens_ratio": 0.3, "chunked_prefill_size": 400},
        {"page_size": 16, "max_total_tokens": 1008, "swa_full_tokens_ratio": 0.25, "chunked_prefill_size": 400},
        {"page_size": 1, "max_total_tokens": 1000, "swa_full_tokens_ratio": 0.45, "chunked_prefill_size": 300},
        what="windows",
    ),
    _tight(
        "full+gdn",
        ("full", "gdn"),
        {"page_size": 1, "max_mamba_cache_size": 5, "max_total_tokens": 1100, "chunked_prefill_size": 100},
        {"page_size": 1, "mamba_radix_cache_strategy": "extra_buffer", "max_mamba_cache_size": 7},
        {"page_size": 16, "max_mamba_cache_size": 9, "max_total_tokens": 1200, "chunked_prefill_size": 128},
        {"page_size": 16, "max_mamba_cache_size": 12, "mamba_track_interval": 64, "chunked_prefill_size": 96},
        {"page_size": 16, "mamba_max_states_per_path": 2, "chunked_prefill_size": 64},
    ),
)
"""In less room still, with outputs that leave windows and cross the grid of the states."""
ALL = (*configurations(), *SMALL_POOLS, *TIGHT_POOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One sequence, up to the first request that the engine refuses or its law does not cover."""

    engine: str
    configuration: str
    variant: int
    sequence: int
    drawn: int
    """Checksum of the requests, by which another draw is told from another answer."""
    options: dict[str, Any] | None
    """Of the law of a served engine, read back from it; None: the case's own."""
    answers: tuple[tuple[int | None, ...], ...]
    """Hit, start, backed length and the ends of the prefill steps of each request; None: the engine does not say."""

    @property
    def key(self) -> tuple[str, str]:
        """What it is an answer of."""
        return self.engine, self.configuration


def case_of(configuration: Configuration, variant: int, sequence: int) -> Case:
    """The random sequence of that number, asked of a variant."""
    return draw(configuration, {**configuration.options, **configuration.variants[variant]}, SEED, sequence)


def checksum(case: Case) -> int:
    """Of all that is asked."""
    return zlib.crc32(case.model_dump_json(exclude={"id"}).encode())


def law_of(case: Case, options: dict[str, Any] | None) -> Law:
    """The law that has to give the answers."""
    return make_law(case.engine, case.law_options if options is None else options)


def read() -> dict[tuple[str, str], list[Recorded]]:
    """All sequences by engine and configuration."""
    found: dict[tuple[str, str], list[Recorded]] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else ():
        recorded = Recorded(**json.loads(line))
        found.setdefault(recorded.key, []).append(recorded)
    return found


def outcome(request: TokenRequest, answer: tuple[int | None, ...]) -> Outcome:
    """An answer as the engine gave it."""
    hit, start, backed, *ends = answer
    begins = [start, *ends]
    steps = tuple((int(a or 0), int(b or 0)) for a, b in zip(begins, ends, strict=False))
    return Outcome(sent=request, hit_len=hit, position_start=start, steps=steps or None, backed_len=backed)


def _answer(seen: Outcome) -> tuple[int | None, ...]:
    ends = [end for _, end in seen.steps or ()]
    answer = (seen.hit_len, seen.position_start, seen.backed_len, *ends)
    assert outcome(seen.sent, answer).steps == (seen.steps or None), f"steps that do not follow each other: {seen}"
    return answer


def _record(configuration: Configuration, engine: LookupSubject | ServedSubject) -> Iterator[Recorded]:
    variants = len(configuration.variants)
    for sequence in range(max(SEQUENCES, variants)):
        variant = sequence % variants
        case, answers = case_of(configuration, variant, sequence), list[tuple[int | None, ...]]()
        if case.options.get("n_cache_reuse"):  # compares inside prompts: other IDs are another question
            continue
        options: dict[str, Any] | None = None
        try:
            engine.begin(case)
            if isinstance(engine, ServedSubject):
                assert engine._engine is not None
                options = dict(engine._engine.facts.law_options)
            law = LawSubject(lambda case, options=options: law_of(case, options))  # type: ignore[misc]
            law.begin(case)
            for index in range(min(len(case.requests), MOST)):
                # A served engine gets other IDs, with the same common prefixes, which are all that its law compares.
                seen, predicted = engine.send(index), law.send(index)
                assert not differing(predicted, seen), f"{case.id}: {differing(predicted, seen)}"
                answers.append(_answer(seen))
        except (LawDoesNotCover, UsageError, RequestRefused) as refused:
            print(f"{case.id}: {len(answers)} answers, then {refused}"[:200])  # noqa: T201
        if len(answers) >= LEAST:
            yield Recorded(
                engine=case.engine,
                configuration=configuration.name,
                variant=variant,
                sequence=sequence,
                drawn=checksum(case),
                options=options,
                answers=tuple(answers),
            )


def main(begins: str = "") -> None:
    """Ask every engine whose law begins so; the other lines stay."""
    kept = [one for each in read().values() for one in each if not one.engine.startswith(begins)]
    lookup, served = LookupSubject(), ServedSubject()
    for configuration in ALL:
        if configuration.engine.startswith(begins):
            kept += _record(configuration, lookup if configuration.against is Fidelity.LOOKUP else served)
    lookup.close()
    served.close()
    lines = [json.dumps(asdict(one), separators=(",", ":")) for one in kept]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
