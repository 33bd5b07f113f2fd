"""A running SGLang server as `vocabulary.engine.Engine`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from adapters.checked import reply_from
from adapters.http import HttpClient, sending_ns
from adapters.sglang.server import Launched, Server
from adapters.sglang.transcript import decode
from vocabulary.engine import EngineFacts, Feature, Reply, Span, TokenRequest
from vocabulary.errors import EngineFailed, RequestRefused

FLUSH_WAIT_S = 5


class SglangEngine:
    """Speaks `/generate`; `launched` is None for a server that the user runs, and then no positions are seen."""

    def __init__(self, server: Server, facts: EngineFacts, launched: Launched | None = None) -> None:
        self.facts = facts
        self.server, self.launched = server, launched
        self._client = server.client()
        self._count, self._probe_lock = itertools.count(), Lock()

    def send(self, request: TokenRequest) -> Reply:
        """Send one request and wait."""
        return self._send(request, self._client)

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Send all at once, each on a connection of its own; the first error is raised when all have ended."""
        with ThreadPoolExecutor(max(1, len(requests))) as pool:
            pending = [pool.submit(self._send_alone, request) for request in requests]
        return [future.result() for future in pending]

    def reset(self) -> bool:
        """Flush the radix cache; EngineFailed when SGLang says that it did not."""
        path = f"/flush_cache?timeout={FLUSH_WAIT_S}"
        try:
            status, body = self._client.post(path, None)
        except EngineFailed as error:
            raise self._failure(error) from None
        if status != 200:
            raise EngineFailed(
                f"sglang: POST {path} answered {status}: {body[:200].decode(errors='replace')}. "
                f"The cache is as it was; SGLang flushes only while no request runs or waits"
            )
        return True

    def close(self) -> None:
        """Stop the server if hitparity launched it."""
        self._client.close()
        if self.launched is not None:
            self.launched.stop()

    def _send_alone(self, request: TokenRequest) -> Reply:
        client = self.server.client()
        try:
            return self._send(request, client)
        finally:
            client.close()

    def _send(self, request: TokenRequest, client: HttpClient) -> Reply:
        self._check(request)
        rid = f"{request.request_id}#{next(self._count)}"
        sent_ns = sending_ns(request)
        try:
            answer = decode(client.stream("/generate", body_of(request, rid)))
        except EngineFailed as error:
            raise self._failure(error) from None
        if answer.rid != rid:
            raise EngineFailed(f"sglang: asked as {rid}, answered another request's {answer.rid}")
        if len(answer.output_ids) != request.max_tokens:
            raise EngineFailed(
                f"sglang: generated {len(answer.output_ids)} tokens, {request.max_tokens} were asked for"
            )
        steps = self._steps(rid)
        fields = {
            "request_id": request.request_id,
            "prompt_len": answer.prompt_len,
            "hit_len": answer.hit_len,
            "hit_source": "meta_info.cached_tokens",
            "position_start": steps[0][0] if steps else None,
            "position_source": "probe: ForwardBatch.positions" if steps else "none",
            "output_ids": answer.output_ids,
            "first_logprob": answer.first_logprob,
            "sent_ns": sent_ns,
            "first_token_ns": answer.first_token_ns,
            "done_ns": answer.done_ns,
            "steps": steps,
            "native": answer.native,
        }
        return reply_from("sglang", fields)

    def _check(self, request: TokenRequest) -> None:
        """Refuse what SGLang 0.5.23 takes and then dies of, or silently changes."""
        if bad := [i for i in request.ids if not 0 <= i < self.facts.vocab_size]:
            # The embedding lookup raises in the scheduler, which takes the whole server down.
            raise RequestRefused(f"sglang: token ID {bad[0]} is outside the vocabulary [0, {self.facts.vocab_size})")
        if request.prompt_len + request.max_tokens > self.facts.context_len:
            # Too long a prompt is refused by the server, but too many output tokens would only be cut.
            raise RequestRefused(
                f"sglang: {request.prompt_len} prompt and {request.max_tokens} output tokens exceed the "
                f"{self.facts.context_len} that this server takes; raise max_total_tokens or context_length"
            )

    def _steps(self, rid: str) -> tuple[Span, ...] | None:
        if self.launched is None:
            return None
        with self._probe_lock:
            steps = self.launched.probe.take(rid)
        if not steps:
            # SGLang only logs a hook that does not fit, so its absence shows here first.
            raise EngineFailed(
                f"sglang: the probe saw no prefill step of request {rid}; its hook does not fit SGLang "
                f"{self.facts.version}. Use 0.5.23, or attach to the server, which needs no probe"
            )
        return steps

    def _failure(self, error: EngineFailed) -> EngineFailed:
        return error if self.launched is None else self.launched.process.failure(error)


def body_of(request: TokenRequest, rid: str) -> dict[str, Any]:
    """The JSON body of POST /generate."""
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": list(request.ids),
        "sampling_params": {"max_new_tokens": request.max_tokens, "temperature": 0, "ignore_eos": True},
        "stream": True,
    }
    if request.namespace is not None:
        body["cache_salt"] = request.namespace
    if request.features:
        # The start caps the lookup: -1, the last prompt position, leaves every possible hit (executed, 0.5.23).
        start = 0 if Feature.PROMPT_LOGPROBS in request.features else -1
        body |= {"return_logprob": True, "logprob_start_len": start}
    return body
