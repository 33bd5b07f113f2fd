"""Random request sequences. Prompts are made of runs of unused IDs, so that relations survive shrinking.

fresh    ~~~~~~~~~          repeat   AAAAAAAAA         extend   AAAAAAAAA oo ~~~     (o: generated tokens)
trim     AAAAA              branch   AAAAA~~~          edit     AAAA~AAAA
delete   AAA   AAA
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from harness.cases.format import Case, CaseRequest
from harness.cases.tokens import Tokens
from harness.fuzz.configurations import Configuration

NEAR = (-2, -1, -1, 0, 0, 0, 1, 1, 2, 3)
"""Distances from an edge, the ones that matter most more often."""
REQUESTS = (6, 28)
FIRST_ID = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Past:
    """A request drawn earlier."""

    prompt: Tokens
    output: Tokens
    namespace: str | None
    lora: str | None


class Drawing:
    """Draws one sequence."""

    def __init__(self, rng: np.random.Generator, configuration: Configuration) -> None:
        self._rng, self._configuration = rng, configuration
        self._next_id = FIRST_ID
        self._past: list[Past] = []
        self._extras = rng.random() < 0.3
        """Whether this sequence mixes namespaces, adapters and features; most do not, to keep hits frequent."""

    def case(self, case_id: str, source: str, options: dict[str, object]) -> Case:
        """The whole sequence as a case that states no hits."""
        count = int(self._rng.integers(*REQUESTS, endpoint=True))
        return Case(
            id=case_id,
            source=source,
            engine=self._configuration.engine,
            groups=self._configuration.groups,
            options=options,
            requests=tuple(self._request() for _ in range(count)),
        )

    def _request(self) -> CaseRequest:
        origin = self._origin()
        prompt = self._prompt(origin)
        namespace, lora = (origin.namespace, origin.lora) if origin else (None, None)
        configuration, features = self._configuration, []
        if self._extras:
            if configuration.namespaces and self._chance(0.15):
                namespace = self._pick([None, "a", "b"])
            if configuration.lora and self._chance(0.15):
                lora = self._pick([None, "x@/1", "x@/2", "y@/1"])
            features = [feature for feature in configuration.features if self._chance(0.06)]
        output = self._output(prompt)
        self._past.append(Past(prompt, output, namespace, lora))
        return CaseRequest(prompt=prompt, output=output, namespace=namespace, lora=lora, features=tuple(features))

    def _origin(self) -> Past | None:
        """An earlier request, recent ones more often; None: something new."""
        if not self._past or self._chance(0.15):
            return None
        back = min(int(self._rng.geometric(0.25)), len(self._past))
        return self._past[-back] if self._chance(0.8) else self._pick(self._past)

    def _prompt(self, origin: Past | None) -> Tokens:
        longest = self._configuration.longest - self._configuration.longest_output
        if origin is None:
            return self._fresh(self._length(longest))
        known = origin.prompt + origin.output
        match self._pick(["repeat", "repeat", "extend", "extend", "trim", "branch", "branch", "edit", "delete"]):
            case "repeat":
                prompt = origin.prompt
            case "extend":
                generated = self._pick([len(origin.output), int(self._rng.integers(0, len(origin.output) + 1))])
                base = origin.prompt + origin.output.cut(generated)
                more = self._length(max(longest - len(base), 1), least=0)
                prompt = base + self._fresh(more if self._chance(0.7) else int(self._rng.integers(0, 4)))
            case "trim":
                prompt = known.cut(self._length(len(known)))
            case "branch":
                kept = known.cut(self._length(len(known)))
                prompt = kept + self._fresh(self._length(max(longest - len(kept), 1)))
            case "edit":
                at = min(self._length(len(origin.prompt)), len(origin.prompt)) - 1
                prompt = origin.prompt.cut(at) + self._fresh(1) + origin.prompt.part(at + 1, len(origin.prompt))
            case _:
                at = self._length(len(origin.prompt))
                gone = self._length(max(len(origin.prompt) - at, 1))
                prompt = origin.prompt.cut(at) + origin.prompt.part(at + gone, len(origin.prompt))
        return prompt.cut(longest) if len(prompt) else self._fresh(1)

    def _output(self, prompt: Tokens) -> Tokens:
        longest = self._configuration.longest_output
        count = 1 if self._chance(0.75) else self._length(longest)
        if self._chance(0.3):
            # What an earlier sequence goes on with: keys that cover the next token see it.
            for past in reversed(self._past):
                known = past.prompt + past.output
                if len(known) > len(prompt) and known.cut(len(prompt)) == prompt:
                    same = known.part(len(prompt), len(prompt) + count)
                    return same + self._fresh(count - len(same))
        return self._fresh(count)

    def _length(self, longest: int, least: int = 1) -> int:
        """A length in `[least, longest]`, mostly near a multiple or a sum of edges."""
        edges = [edge for edge in self._configuration.edges if edge <= longest + 2]
        if not edges or self._chance(0.2):
            return int(self._rng.integers(least, longest, endpoint=True))
        edge = self._pick(edges)
        near = edge * int(self._rng.integers(1, max(longest // edge, 1), endpoint=True)) + self._pick(NEAR)
        if self._chance(0.2):
            near += self._pick(edges)
        return max(least, min(near, longest))

    def _fresh(self, count: int) -> Tokens:
        start = self._next_id
        self._next_id += count + 1  # a gap, so that two runs never join
        return Tokens.joined([(start, start + count)])

    def _chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def _pick(self, values: Sequence[T]) -> T:
        return values[int(self._rng.integers(len(values)))]
