"""Observation against law: the ledger of one request and what is wrong with it.

A judge sees every request of an engine in order, since the last reset, and keeps the law and the
history of computed tokens beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.records import Finding, FindingKind
from reference_engine.laws.base import Expectation, Law
from reference_engine.laws.parts.history import History, common_prefix
from reference_engine.laws.registry import make_law
from vocabulary.engine import EngineFacts, Reply, TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.ledger import Cause, Ledger


@dataclass(frozen=True, slots=True)
class Judgement:
    """What follows from one reply."""

    lcp_len: int
    expectation: Expectation | None
    """None: no law covers the engine as configured."""
    ledger: Ledger | None
    """None: the engine showed neither a hit nor a start."""
    findings: tuple[Finding, ...]
    law: str | None
    """The law behind the expectation; None: none covers the engine, or it was left on the way (`Judge.left`)."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What could be reused of a prompt at best, in tokens."""

    before: int
    """Computed in this namespace before it was sent."""
    lcp: int
    """Or sent in this namespace together with it."""
    novel: int
    """Tokens up to here were computed before, in any namespace, or sent together with it and listed earlier."""


class Judge:
    """Judges the replies of one engine."""

    def __init__(self, facts: EngineFacts) -> None:
        self._facts = facts
        self._law = make_law(facts.law, facts.law_options) if facts.law else None
        self._rejoins: Law | None = None
        self.left: str | None = None
        """Why the law was left: a request went beyond what it covers, and nothing after it is predicted."""
        self._history = History()

    def reset(self) -> None:
        """The engine was asked to forget."""
        self._history.clear()
        if self._rejoins is not None:
            self._law, self._rejoins, self.left = self._rejoins, None, None
        if self._law:
            self._law.reset()

    def judge(self, request: TokenRequest, reply: Reply) -> Judgement:
        """Explain one reply; call it once per request, in the order they were sent."""
        return self._judge(request, reply, self._known([request])[0])

    def judge_together(self, requests: Sequence[TokenRequest], replies: Sequence[Reply]) -> list[Judgement]:
        """Replies to requests sent at one moment: nothing is predicted for them, nor after them until a reset.

        Laws state serial order, and who is served first, and what of it is published when, is the engine's affair.
        """
        known = self._known(requests)
        if self._law is not None:
            self.left = f"{len(requests)} requests were sent together; {self._law.id} states serial order"
            # Where a reset leaves something behind, the law cannot know what the requests left there.
            self._rejoins = self._law if self._law.reset_forgets_all else None
            self._law = None
        return [self._judge(*each) for each in zip(requests, replies, known, strict=True)]

    def _judge(self, request: TokenRequest, reply: Reply, known: _Known) -> Judgement:
        self._history.add(request.computed(reply.output_ids), request.space)
        expectation = self._predict(request, reply)
        findings = tuple(_findings(self._facts, request, reply, known.lcp, expectation))
        start = reply.hit_len if reply.position_start is None else reply.position_start
        law = self._facts.law if expectation else None
        if start is None or any(f.kind is FindingKind.OUT_OF_RANGE for f in findings):
            return Judgement(known.lcp, expectation, None, findings, law)
        if expectation:
            ledger = expectation.ledger.observed(start)
        else:
            cap = request.prompt_len - 1 if self._facts.caps_last_token else request.prompt_len
            ledger = Ledger.waterfall(
                request.prompt_len,
                [
                    (Cause.NOVEL, max(known.novel, start)),
                    (Cause.NAMESPACE, max(known.lcp, start)),
                    (Cause.LAST_TOKEN, cap),
                    (Cause.IN_FLIGHT, max(known.before, start)),
                    (Cause.NO_LAW, start),
                ],
            )
        return Judgement(known.lcp, expectation, ledger, findings, law)

    def _known(self, requests: Sequence[TokenRequest]) -> list[_Known]:
        """Of requests sent at one moment, before any of them is remembered."""
        found = []
        for index, request in enumerate(requests):
            ids, space = request.array, request.space
            before = self._history.lcp(ids, space)
            beside = [
                common_prefix(ids, other.array) if other is not request and other.space == space else 0
                for other in requests
            ]
            novel = max([before, *beside[:index], self._history.lcp_elsewhere(ids, space)])
            found.append(_Known(before, max(before, *beside), novel))
        return found

    def would_hit(self, ids: tuple[int, ...]) -> bool | None:
        """Whether the law says that these IDs, sent twice to an empty cache, hit the second time; None: no law."""
        if not self._facts.law:
            return None
        law = make_law(self._facts.law, self._facts.law_options)
        hits = []
        for name in ("first", "second"):
            request = TokenRequest(request_id=name, ids=ids)
            hits.append(law.send(request).hit_len)
            law.finish(request, ids[:1])
        return hits[1] > 0

    def _predict(self, request: TokenRequest, reply: Reply) -> Expectation | None:
        if self._law is None:
            return None
        try:
            expectation = self._law.send(request)
            self._law.finish(request, reply.output_ids)
        except LawDoesNotCover as error:
            # Its books are no longer the engine's; until the engine is started anew nothing can be claimed.
            self._law, self.left = None, str(error)
            return None
        return expectation


def _findings(
    facts: EngineFacts, request: TokenRequest, reply: Reply, lcp: int, expectation: Expectation | None
) -> list[Finding]:
    found: list[Finding] = []

    def note(kind: FindingKind, detail: str) -> None:
        found.append(Finding(kind=kind, detail=detail))

    length, hit, start = request.prompt_len, reply.hit_len, reply.position_start
    cap = length - 1 if facts.caps_last_token else length
    if reply.prompt_len != length:
        note(FindingKind.PROMPT_MISCOUNT, f"{length} tokens sent, the engine counted {reply.prompt_len}")
    if wrong := [token_id for token_id in reply.output_ids if not 0 <= token_id < facts.vocab_size]:
        note(
            FindingKind.OUT_OF_RANGE, f"generated token {wrong[0]} lies outside the vocabulary [0, {facts.vocab_size})"
        )
    for name, value, source in (("hit", hit, reply.hit_source), ("start", start, reply.position_source)):
        if value is not None and not 0 <= value <= cap:
            note(FindingKind.OUT_OF_RANGE, f"{name} {value} ({source}) lies outside [0, {cap}]")
    for kind, detail in _borrowed(facts, reply, lcp, expectation):
        note(kind, detail)
    same_expected = expectation is None or expectation.hit_len == expectation.position_start
    if hit is not None and start is not None and same_expected and hit != start:
        note(
            FindingKind.SOURCES_DISAGREE,
            f"hit {hit} ({reply.hit_source}) but computing started at {start} ({reply.position_source})",
        )
    if reply.steps is not None and start is not None and not _tiles(reply.steps, start, length):
        note(FindingKind.SOURCES_DISAGREE, f"prefill steps {list(reply.steps)} do not cover [{start}, {length})")
    if expectation:
        for name, value, expected in (
            ("hit", hit, expectation.hit_len),
            ("start", start, expectation.position_start),
        ):
            if value is not None and value != expected:
                kind = FindingKind.UNEXPLAINED if value < expected else FindingKind.SURPLUS
                note(kind, f"{name} {value}, the law {facts.law} says {expected}")
    return found


def _borrowed(
    facts: EngineFacts, reply: Reply, lcp: int, expectation: Expectation | None
) -> Iterator[tuple[FindingKind, str]]:
    """What the hit counts although it was computed for another prefix, or is not held at all."""
    hit = reply.hit_len
    if hit is None:
        return
    moved = expectation.approximate_len if expectation else 0
    if hit > lcp:
        yield FindingKind.APPROXIMATE, f"hit {hit} is longer than the true common prefix {lcp}"
    elif hit and moved:
        yield FindingKind.APPROXIMATE, f"{moved} tokens of hit {hit} were computed behind another prefix and moved"
    seen, expected = reply.backed_len, expectation.backed_len if expectation else None
    if seen is not None and seen < hit:
        yield FindingKind.UNBACKED, f"hit {hit}, of which some layers hold only {seen} tokens (by the engine's cache)"
    elif seen is None and expected is not None and expected < hit:
        yield FindingKind.UNBACKED, f"hit {hit}, of which some layers hold only {expected} tokens (by law {facts.law})"


def _tiles(steps: tuple[tuple[int, int], ...], start: int, end: int) -> bool:
    """Whether the spans cover `[start, end)` in order without gap or overlap."""
    position = start
    for begin, finish in steps:
        if begin != position or finish <= begin:
            return False
        position = finish
    return position == end
