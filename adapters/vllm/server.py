"""A vLLM server as an `Engine`: launched by us, with the scheduler's probe, or the user's, without."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from adapters.checked import reply_from
from adapters.http import HttpClient, sending_ns
from adapters.process import EngineProcess
from adapters.vllm.probe_log import Prefill, ProbeLog
from adapters.vllm.transcript import Transcript, body, decode
from vocabulary.engine import EngineFacts, Reply, TokenRequest
from vocabulary.errors import EngineFailed

HIT_SOURCE = "usage.prompt_tokens_details.cached_tokens"
COMPLETIONS, RESET = "/v1/completions", "/reset_prefix_cache"
ID_PREFIX = "cmpl-"
"""What the server puts before the request's id; a proxy may answer with an id of its own."""


class VllmServer:
    """Implements `vocabulary.engine.Engine` over HTTP."""

    def __init__(
        self,
        facts: EngineFacts,
        connect: Callable[[], HttpClient],
        *,
        served_name: str,
        process: EngineProcess | None = None,
        probe: ProbeLog | None = None,
    ) -> None:
        self.facts = facts
        self._connect, self._clients = connect, [connect()]
        self._served_name, self._process, self._probe = served_name, process, probe
        # Several harnesses may share an attached server, so a bare counter would not do.
        self._ids = (f"hitparity.{time.monotonic_ns()}.{n}" for n in itertools.count())

    def send(self, request: TokenRequest) -> Reply:
        """Send one request and wait."""
        return self.send_together([request])[0]

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Send all at once, each on its own connection."""
        while len(self._clients) < len(requests):
            self._clients.append(self._connect())
        ids = list(itertools.islice(self._ids, len(requests)))
        try:
            if len(requests) == 1:
                exchanged = [self._exchange(self._clients[0], requests[0], ids[0])]
            else:
                with ThreadPoolExecutor(len(requests)) as pool:
                    exchanged = list(pool.map(self._exchange, self._clients, requests, ids))
        except EngineFailed as error:
            raise self._failure(error) from None
        prefills: Sequence[Prefill | None] = [None] * len(requests)
        if self._probe is not None:
            # The server names a completion's only prompt "cmpl-<request id>-0".
            prefills = self._probe.take(f"{ID_PREFIX}{request_id}-0" for request_id in ids)
        return [
            _reply(request, sent_ns, done_ns, transcript, prefill)
            for request, (sent_ns, done_ns, transcript), prefill in zip(requests, exchanged, prefills, strict=True)
        ]

    def reset(self) -> bool:
        """Ask for an empty prefix cache; False where the server does not offer it (VLLM_SERVER_DEV_MODE=1 does)."""
        try:
            status, data = self._clients[0].post(RESET, {})
        except EngineFailed as error:
            raise self._failure(error) from None
        if status != 200:
            return False
        if not data:  # old servers
            return True
        try:
            return json.loads(data)["success"] is True
        except (ValueError, LookupError, TypeError):
            raise EngineFailed(f"vllm: {RESET} answered neither yes nor no: {data[:200]!r}") from None

    def close(self) -> None:
        """Close the connections and stop the server if it is ours."""
        for client in self._clients:
            client.close()
        if self._process is not None:
            self._process.stop()

    def _exchange(self, client: HttpClient, request: TokenRequest, request_id: str) -> tuple[int, int, Transcript]:
        fields = body(request, self._served_name, request_id)
        sent_ns = sending_ns(request)
        transcript = decode(request, client.stream(COMPLETIONS, fields))
        answered, asked = transcript.response_id, ID_PREFIX + request_id
        if answered.startswith(f"{ID_PREFIX}hitparity.") and answered != asked:
            raise EngineFailed(f"vllm: asked as {asked}, answered another request's {answered}")
        return sent_ns, time.monotonic_ns(), transcript

    def _failure(self, error: EngineFailed) -> EngineFailed:
        return error if self._process is None else self._process.failure(error)


def _reply(request: TokenRequest, sent_ns: int, done_ns: int, transcript: Transcript, prefill: Prefill | None) -> Reply:
    fields = {
        "request_id": request.request_id,
        "prompt_len": transcript.prompt_len,
        "hit_len": transcript.hit_len,
        "hit_source": "none" if transcript.hit_len is None else HIT_SOURCE,
        "position_start": prefill.position_start if prefill else None,
        "position_source": "scheduler" if prefill else "none",
        "output_ids": transcript.output_ids,
        "first_logprob": transcript.first_logprob,
        "sent_ns": sent_ns,
        "first_token_ns": transcript.first_token_ns,
        "done_ns": done_ns,
        "steps": prefill.steps if prefill else None,
        "native": {"preemptions": prefill.preemptions} if prefill else {},
    }
    return reply_from("vllm", fields)
