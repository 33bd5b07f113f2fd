"""The harness's side of a worker: JSON lines over a child's stdin and stdout.

Protocol, version 1. The worker is a stand-alone script run by the engine's own Python; it writes one
`hello` line when the engine is ready and then one line per line it reads:

    <- {"hello": 1, "facts": {...}}                          facts as keyword arguments of EngineFacts
    -> {"op": "send", "requests": [{"request_id", "ids", "max_tokens", "namespace", "features",
                                  "lora", "external_hit", "fork_of"}]}
    <- {"ok": true, "replies": [{... keyword arguments of Reply ...}]}
    -> {"op": "reset"}            <- {"ok": true, "reset": true | false}
    -> {"op": "close"}            <- nothing; the worker ends
    <- {"ok": false, "refused": "why"}    this request only
    <- {"ok": false, "failed": "why"}     the engine cannot go on
"""

from __future__ import annotations

import json
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from adapters.checked import reply_from
from adapters.process import EngineProcess
from vocabulary.engine import EngineFacts, Reply, TokenRequest
from vocabulary.errors import EngineFailed, EngineUnavailable, HitparityError, RequestRefused

PROTOCOL = 1
MAX_LINE_BYTES = 64 << 20

T = TypeVar("T")


class Worker:
    """A running worker script; gives the raw facts of its hello line and exchanges messages."""

    def __init__(
        self,
        engine: str,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        start_timeout_s: float,
        request_timeout_s: float,
        stop_timeout_s: float = 20.0,
    ) -> None:
        self.engine, self._timeout_s = engine, request_timeout_s
        self._process = EngineProcess(
            engine,
            command,
            log=folder / "engine.log",
            environment=environment,
            pipes=True,
            stop_timeout_s=stop_timeout_s,
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._buffer = bytearray()
        try:
            hello = self._receive(start_timeout_s)
            if hello.get("hello") != PROTOCOL:
                why = hello.get("failed") or f"said {str(hello)[:300]} in place of hello {PROTOCOL}"
                raise EngineUnavailable(f"{engine}: the worker {why}. {self._process.log_hint()}")
            self.facts: dict[str, Any] = self._field(hello, "facts", dict)
        except HitparityError as error:
            self.close()
            raise EngineUnavailable(str(error)) from None
        except BaseException:
            self.close()
            raise

    def send(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Send the requests together; replies in their order."""
        message = {
            "op": "send",
            "requests": [
                {
                    "request_id": r.request_id,
                    "ids": list(r.ids),
                    "max_tokens": r.max_tokens,
                    "namespace": r.namespace,
                    "features": sorted(r.features),
                    "lora": r.lora,
                    "external_hit": r.external_hit,
                    "fork_of": r.fork_of,
                }
                for r in requests
            ],
        }
        replies = self.replies(message, requests)
        for request, reply in zip(requests, replies, strict=True):
            if len(reply.output_ids) != request.max_tokens:
                raise EngineFailed(
                    f"{self.engine}: generated {len(reply.output_ids)} tokens, {request.max_tokens} were asked for"
                )
        return replies

    def replies(self, message: Mapping[str, Any], requests: Sequence[TokenRequest]) -> list[Reply]:
        """Exchange a message whose answer carries one reply per request, in their order."""
        fields = self._field(self.exchange(message), "replies", list)
        replies = [reply_from(self.engine, each) for each in fields]
        if [reply.request_id for reply in replies] != [request.request_id for request in requests]:
            raise EngineFailed(f"{self.engine}: the worker's replies are not those of the {len(requests)} requests")
        return replies

    def reset(self) -> bool:
        """Ask the engine to forget its cache."""
        return self._field(self.exchange({"op": "reset"}), "reset", bool)

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One message out, one answer in; RequestRefused or EngineFailed as the worker says."""
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise EngineFailed(f"{self.engine}: {self._ended() or error}. {self._process.log_hint()}") from None
        answer = self._receive(self._timeout_s)
        if answer.get("ok") is True:
            return answer
        if "refused" in answer:
            raise RequestRefused(f"{self.engine}: {answer['refused']}")
        raise EngineFailed(f"{self.engine}: {answer.get('failed', answer)}. {self._process.log_hint()}")

    def close(self) -> None:
        """End the worker; never raises."""
        self._selector.close()
        self._process.stop()

    def _field(self, answer: Mapping[str, Any], name: str, kind: type[T]) -> T:
        value = answer.get(name)
        if not isinstance(value, kind):
            raise EngineFailed(f"{self.engine}: the worker's `{name}` is {str(value)[:200]!r}, not a {kind.__name__}")
        return value

    def _ended(self) -> str | None:
        return self._process.exit_text(patience_s=2)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        searched = 0
        while (newline := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise EngineFailed(f"{self.engine}: no answer within {timeout_s:.0f} s. {self._process.log_hint()}")
            data = self._process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
            if not data:
                raise EngineFailed(f"{self.engine}: {self._ended() or 'closed its pipe'}. {self._process.log_hint()}")
            self._buffer += data
            if len(self._buffer) > MAX_LINE_BYTES:
                raise EngineFailed(f"{self.engine}: answered with a line of over {MAX_LINE_BYTES} bytes")
        line = bytes(self._buffer[:newline])
        del self._buffer[: newline + 1]
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):  # ValueError: also an integer of too many digits
            raise EngineFailed(f"{self.engine}: the worker wrote a line that is not JSON: {line[:200]!r}") from None
        if not isinstance(answer, dict):
            raise EngineFailed(f"{self.engine}: the worker wrote a line that is not an object: {line[:200]!r}")
        return answer


class WorkerEngine:
    """`vocabulary.engine.Engine` over a `Worker`."""

    def __init__(self, worker: Worker, facts: EngineFacts) -> None:
        self._worker, self.facts = worker, facts

    @classmethod
    def with_facts(cls, worker: Worker, facts_of: Callable[[Mapping[str, Any]], EngineFacts]) -> Self:
        """The engine behind a worker whose own facts `facts_of` completes; where that raises, the worker is ended."""
        try:
            return cls(worker, facts_of(worker.facts))
        except BaseException:
            worker.close()
            raise

    def send(self, request: TokenRequest) -> Reply:
        """Send one request and wait."""
        return self._worker.send([request])[0]

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Send all at once."""
        return self._worker.send(requests)

    def reset(self) -> bool:
        """Ask the engine to forget its cache."""
        return self._worker.reset()

    def close(self) -> None:
        """End the worker."""
        self._worker.close()
