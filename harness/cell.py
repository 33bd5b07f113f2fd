"""One cell: prove that the cache can be emptied, send the workload, compare warm outputs with cold ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.experiment import Checks
from harness.interrupt import Interrupt
from harness.judge import Judge, Judgement
from harness.plan import Cell, scale_of
from harness.records import INVALIDATING, Finding, FindingKind, RequestRecord, Role, answer_sha256
from harness.store import RequestLog
from vocabulary.engine import Engine, Feature, Fidelity, Mode, Reply, TokenRequest
from vocabulary.errors import UsageError
from workloads.sequence import Ids, Send, batches, fingerprint, prompt_lengths
from workloads.source import TokenSource

AHEAD_NS = 200_000_000
"""The first request with a time of its own is sent so long after all threads were asked for."""
MOST_TIMED = 2000
"""Requests with times of their own in one go: each waits in a thread."""
SENTINEL_LEN = 33
"""Shortest sentinel; longer where two granules and one token are longer."""
LOGPROB_TOLERANCE = {"float32": 0.01, "float16": 0.1, "bfloat16": 0.25}
"""Largest difference of the first token's log-probability, warm against cold, by the engine's dtype.

Batch shapes differ between a cold and a warm prefill, and so do roundings; some engines keep KV in fewer
bits than the weights. docs/trust.md gives the measurements behind the numbers.
"""


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """What a finished cell amounts to."""

    valid: bool
    findings: tuple[Finding, ...]
    """About the cell as a whole."""


class CellRun:
    """Runs one cell on a started engine, writing every request as it is known.

    The judge has followed the engine since its start: a reset empties a cache, but not, for example, the order in
    which llama.cpp's slots were used. Without `contents`, records hold hashes of what was generated.
    """

    def __init__(
        self,
        engine: Engine,
        judge: Judge,
        cell: Cell,
        checks: Checks,
        *,
        log: RequestLog,
        interrupt: Interrupt,
        on_request: Callable[[RequestRecord], None],
        contents: bool = True,
    ) -> None:
        self._engine, self._cell, self._checks = engine, cell, checks
        self._log, self._interrupt, self._on_request = log, interrupt, on_request
        self._judge, self._contents = judge, contents
        self._findings: list[Finding] = []
        self._kinds: set[FindingKind] = set()
        self._repetitions: dict[str, int] = {}

    def run(self, source: TokenSource) -> CellOutcome:
        """Send everything; raises what the engine raises, with all requests so far written."""
        workload = self._cell.workload
        sends = workload.family.sends(workload.parameters.at(scale_of(self._engine.facts)), source)
        if not sends:
            raise UsageError(
                f"{self._cell.id}: the workload sends nothing; give family {self._cell.workload.name!r} more"
            )
        self._refuse_too_long(sends)
        self._refuse_keys(sends)
        self._refuse_times(sends)
        self._reset()
        if self._checks.verify_reset:
            self._verify_reset(source)
        probes = self._send_workload(sends)
        if self._checks.control and self._engine.facts.fidelity is not Fidelity.LAW:
            self._compare_with_cold(probes)
        return CellOutcome(not (self._kinds & INVALIDATING), tuple(self._findings))

    def _send_workload(self, sends: Sequence[Send]) -> list[tuple[TokenRequest, str, Reply]]:
        probes: list[tuple[TokenRequest, str, Reply]] = []
        outputs: list[Ids] = []
        for batch in batches(sends):
            if batch[0].reset_before and probes:
                self._reset()
            more = self._more_features
            requests = [send.request(self._name(number), outputs, more) for number, send in enumerate(batch)]
            if any(send.at_ns is not None for send in batch):
                begin_ns = time.monotonic_ns() + AHEAD_NS
                requests = [
                    replace(request, not_before_ns=begin_ns + (send.at_ns or 0))
                    for request, send in zip(requests, batch, strict=True)
                ]
            replies = self._exchange(requests, batch, Role.PROBE)
            if not probes and all(reply.hit_len for reply in replies):
                hit = min(reply.hit_len or 0 for reply in replies)
                self._find(FindingKind.RESET_FAILED, f"the first prompt hit {hit} tokens on an empty cache")
            outputs += [reply.output_ids for reply in replies]
            # Beside others a prompt is computed in other shapes: such a run is no cold one to compare with.
            alone = len(batch) == 1
            probes += [
                (request, send.label, reply if alone or reply.hit_len else replace(reply, hit_len=None))
                for request, send, reply in zip(requests, batch, replies, strict=True)
            ]
        return probes

    def _verify_reset(self, source: TokenSource) -> None:
        """A prompt that is known to be cached must miss after a reset."""
        facts = self._engine.facts
        length = min(max(SENTINEL_LEN, 2 * facts.granule + 1), facts.context_len - 1)
        ids = tuple(source.fresh(length))
        # States and windows may need more than two granules; the law knows.
        while self._judge.would_hit(ids) is False and 2 * length < facts.context_len:
            length = 2 * length
            ids = tuple(source.fresh(length))
        sentinel = Send(label="sentinel", parts=(ids,))
        self._once(sentinel, Role.SENTINEL)
        warm = self._once(sentinel, Role.SENTINEL)
        if warm.hit_len is None:
            self._find(FindingKind.NO_WARM_HIT, "the engine reports no hit length, so nothing can be said about hits")
        elif warm.hit_len == 0:
            self._find(FindingKind.NO_WARM_HIT, f"a prompt of {length} tokens sent twice in a row did not hit")
        self._reset()
        cold = self._once(sentinel, Role.SENTINEL)
        if cold.hit_len:
            self._find(FindingKind.RESET_FAILED, f"a prompt hit {cold.hit_len} tokens after the reset")
        self._reset()

    def _compare_with_cold(self, probes: Sequence[tuple[TokenRequest, str, Reply]]) -> None:
        """Every prompt served warm is sent once more cold; one prompt at least is seen cold twice."""
        cold: dict[TokenRequest, list[Reply]] = {}
        warm: dict[TokenRequest, list[Reply]] = {}
        first: dict[TokenRequest, tuple[TokenRequest, str]] = {}
        for request, label, reply in probes:
            key = replace(request, request_id="")  # equal prompts asked in another way may answer differently
            first.setdefault(key, (request, label))
            if reply.hit_len is not None:
                (warm if reply.hit_len else cold).setdefault(key, []).append(reply)
        # A prompt that was already seen cold comes first: one more cold run of it makes the cold-cold pair.
        for number, key in enumerate(sorted(warm, key=lambda key: key not in cold)):
            request, label = first[key]
            missing = 2 - len(cold.get(key, ())) if number == 0 else 1
            for _ in range(max(1, missing)):
                self._reset()
                reply = self._exchange(
                    [replace(request, request_id=self._name(), not_before_ns=None)],
                    [Send(label=label, parts=())],
                    Role.CONTROL,
                )[0]
                if reply.hit_len:
                    self._find(FindingKind.RESET_FAILED, f"control run of {label!r} hit {reply.hit_len} tokens")
                    return
                cold.setdefault(key, []).append(reply)
            if not self._compare(label, cold[key], warm[key]):
                return

    def _compare(self, label: str, cold: Sequence[Reply], warm: Sequence[Reply]) -> bool:
        """False when two cold runs differ: then no comparison on this engine means anything."""
        tolerance = LOGPROB_TOLERANCE.get(self._engine.facts.dtype, max(LOGPROB_TOLERANCE.values()))
        for other in cold[1:]:
            if difference := _difference(cold[0], other, tolerance, contents=self._contents):
                self._find(FindingKind.COLD_DIFFERS, f"{label!r} cold twice: {difference}")
                return False
        for reply in warm:
            if difference := _difference(cold[0], reply, tolerance, contents=self._contents):
                self._find(FindingKind.WARM_DIFFERS, f"{label!r} with hit {reply.hit_len} against cold: {difference}")
                break
        return True

    def _refuse_too_long(self, sends: Sequence[Send]) -> None:
        context = self._engine.facts.context_len
        for number, (send, length) in enumerate(zip(sends, prompt_lengths(sends), strict=True)):
            needed = length + send.max_tokens
            if needed > context:
                raise UsageError(
                    f"{self._cell.id}: send {number + 1} ({send.label!r}) needs {needed} tokens and "
                    f"{self._cell.engine_label} has a context of {context}; shorten the workload or give the engine "
                    f"a longer context"
                )

    def _refuse_keys(self, sends: Sequence[Send]) -> None:
        facts, label = self._engine.facts, self._cell.engine_label
        remedy = "leave it out with the workload's `engines`"
        if not facts.can_salt and any(send.namespace is not None for send in sends):
            raise UsageError(f"{self._cell.id}: {label} has no cache salt; {remedy}")
        if facts.fidelity is Fidelity.SERVED and any(send.lora is not None for send in sends):
            raise UsageError(f"{self._cell.id}: {label} is served without adapters; {remedy}")
        if not facts.can_media and any(send.media for send in sends):
            raise UsageError(f"{self._cell.id}: {label} takes no images or other items in prompts; {remedy}")

    def _refuse_times(self, sends: Sequence[Send]) -> None:
        facts = self._engine.facts
        over_http = facts.fidelity is Fidelity.SERVED and facts.mode in (Mode.LAUNCH, Mode.ATTACH)
        if not over_http and any(send.at_ns is not None for send in sends):
            raise UsageError(
                f"{self._cell.id}: {self._cell.engine_label} cannot send at recorded times, only an HTTP server can "
                f"(mode launch or attach); leave `open_loop` out, or this engine with the workload's `engines`"
            )
        if sum(send.at_ns is not None for send in sends) > MOST_TIMED:
            raise UsageError(f"{self._cell.id}: more than {MOST_TIMED} requests at recorded times; lower `first`")

    @property
    def _more_features(self) -> frozenset[Feature]:
        return frozenset({Feature.LOGPROB}) if self._checks.logprobs else frozenset()

    def _name(self, ahead: int = 0) -> str:
        return f"{self._cell.id}-{self._log.lines + ahead:05d}"

    def _once(self, send: Send, role: Role) -> Reply:
        return self._exchange([send.request(self._name(), (), self._more_features)], [send], role)[0]

    def _reset(self) -> None:
        if not self._engine.reset():
            self._find(FindingKind.RESET_FAILED, "the engine offers no way to empty its cache as it is configured")
        self._judge.reset()
        self._repetitions.clear()

    def _find(self, kind: FindingKind, detail: str) -> None:
        finding = Finding(kind=kind, detail=detail)
        self._kinds.add(kind)
        if finding not in self._findings:
            self._findings.append(finding)

    def _exchange(self, requests: Sequence[TokenRequest], sends: Sequence[Send], role: Role) -> list[Reply]:
        """Send at one moment, judge, write; a signal in between waits until the lines are written."""
        with self._interrupt.deferred():
            if len(requests) == 1:
                replies = [self._engine.send(requests[0])]
                judgements = [self._judge.judge(requests[0], replies[0])]
            else:
                replies = self._engine.send_together(requests)
                judgements = self._judge.judge_together(requests, replies)
            for request, send, reply, judgement in zip(requests, sends, replies, judgements, strict=True):
                self._write(request, send, role, reply, judgement, together=len(requests))
        return replies

    def _write(
        self, request: TokenRequest, send: Send, role: Role, reply: Reply, judgement: Judgement, *, together: int
    ) -> None:
        findings = judgement.findings
        if send.at_most is not None and reply.hit_len is not None and reply.hit_len > send.at_most:
            detail = f"hit {reply.hit_len} where the workload allows {send.at_most}"
            findings = (*findings, Finding(kind=FindingKind.FORBIDDEN_HIT, detail=detail))
        key = fingerprint(request)
        repetition = self._repetitions.get(key, 0)
        self._repetitions[key] = repetition + 1
        facts, expectation = self._engine.facts, judgement.expectation
        start = judgement.ledger.reused if judgement.ledger else None
        record = RequestRecord(
            cell=self._cell.id,
            request_id=request.request_id,
            index=self._log.lines,
            role=role,
            label=send.label,
            repetition=repetition,
            engine=facts.engine,
            engine_label=self._cell.engine_label,
            version=facts.version,
            mode=facts.mode,
            fidelity=facts.fidelity,
            device=facts.device,
            law=judgement.law,
            emulated=facts.emulated,
            model=self._cell.model,
            workload=self._cell.workload.name,
            namespace=request.namespace,
            lora=request.lora,
            media=tuple((item.identifier, item.start, item.length) for item in request.media),
            together=together,
            prompt_sha256=key,
            prompt_len=request.prompt_len,
            lcp_len=judgement.lcp_len,
            hit_len=reply.hit_len,
            hit_source=reply.hit_source,
            position_start=reply.position_start,
            position_source=reply.position_source,
            tail_len=None if start is None else request.prompt_len - start,
            steps=reply.steps,
            sent_ns=reply.sent_ns,
            ttft_ns=reply.ttft_ns,
            total_ns=reply.done_ns - reply.sent_ns,
            output_ids=reply.output_ids if self._contents else (),
            output_sha256=None if self._contents else answer_sha256(reply.output_ids),
            first_logprob=reply.first_logprob,
            expected_hit_len=expectation.hit_len if expectation else None,
            expected_position_start=expectation.position_start if expectation else None,
            ledger=judgement.ledger.intervals if judgement.ledger else (),
            junction=expectation.junction if expectation else None,
            findings=findings,
            native=dict(reply.native) | self._said(request, reply),
        )
        self._log.append(record)
        self._kinds.update(finding.kind for finding in findings)
        self._on_request(record)

    def _said(self, request: TokenRequest, reply: Reply) -> dict[str, Any]:
        """What the harness adds to the engine's own fields."""
        said: dict[str, Any] = {"law_left": self._judge.left} if self._judge.left else {}
        if request.not_before_ns is not None:
            said |= {"late_ns": reply.sent_ns - request.not_before_ns}
        return said


def _difference(cold: Reply, other: Reply, tolerance: float, *, contents: bool) -> str | None:
    """What differs between two outputs of one prompt, or None."""
    if cold.output_ids != other.output_ids:
        pairs = enumerate(zip(cold.output_ids, other.output_ids, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(cold.output_ids), len(other.output_ids)))
        ids = [list(reply.output_ids[at : at + 3]) for reply in (cold, other)]
        return f"generated token {at} differs" + (f" (cold {ids[0]}, here {ids[1]})" if contents else "")
    if cold.first_logprob is not None and other.first_logprob is not None:
        distance = abs(cold.first_logprob - other.first_logprob)
        if not distance <= tolerance:
            return f"log-probability of the first token differs by {distance:.3g} (tolerance {tolerance})"
    return None
