"""A started llama-server behind `vocabulary.engine.Engine`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from adapters.http import HttpClient, sending_ns
from adapters.llama_cpp.completion import UNFIT_OUTPUT, Timed, body_of, reply_of, spans, unfit_output
from adapters.llama_cpp.launch import Launched
from adapters.llama_cpp.server_log import ServerLog
from adapters.process import EngineProcess
from vocabulary.engine import EngineFacts, Reply, TokenRequest
from vocabulary.errors import EngineFailed, RequestRefused


class LlamaCppEngine:
    """Speaks /completion; reads positions from the log of a server it started, else from the reply."""

    def __init__(
        self,
        facts: EngineFacts,
        url: str,
        *,
        slots: int,
        ram_cache: bool,
        timeout_s: float,
        api_key: str | None = None,
        process: EngineProcess | None = None,
        restart: Callable[[], Launched] | None = None,
        log: ServerLog | None = None,
    ) -> None:
        """`process`, `restart` and `log` are a launched server's; `ram_cache`: it keeps prompts beside the slots."""
        self.facts = facts
        self._url, self._timeout_s, self._api_key = url, timeout_s, api_key
        self._slots, self._ram_cache = slots, ram_cache
        self._process, self._restart, self._log = process, restart, log
        self._client = self._connect()

    def send(self, request: TokenRequest) -> Reply:
        """Send one request and wait."""
        return self._located([self._exchange(self._client, request)])[0]

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Send all at once, each on a connection of its own; a refusal of any is raised once all have ended."""
        if not requests:
            return []
        with ThreadPoolExecutor(len(requests)) as pool:
            pending = [pool.submit(self._exchange_alone, request) for request in requests]
        return self._located([each.result() for each in pending])

    def reset(self) -> bool:
        """Erase every slot. A RAM cache cannot be erased: a launched server starts anew, an attached one is False.

        EngineUnavailable when it does not come up again.
        """
        if self._ram_cache and self._restart is not None:
            self.close()
            server = self._restart()
            self._process, self._url = server.process, server.url
            self._log = None if self._log is None else ServerLog(server.process.log)
            self._client = self._connect()
            return True
        try:
            erased = [self._client.post(f"/slots/{slot}?action=erase", {})[0] == 200 for slot in range(self._slots)]
        except EngineFailed as error:
            raise self._failure(error) from None
        return all(erased) and not self._ram_cache

    def close(self) -> None:
        """Stop the server if this adapter started it."""
        self._client.close()
        if self._process is not None:
            self._process.stop()

    def _connect(self) -> HttpClient:
        return HttpClient(self.facts.engine, self._url, timeout_s=self._timeout_s, api_key=self._api_key)

    def _exchange_alone(self, request: TokenRequest) -> Timed:
        client = self._connect()
        try:
            return self._exchange(client, request)
        finally:
            client.close()

    def _exchange(self, client: HttpClient, request: TokenRequest) -> Timed:
        if request.prompt_len + request.max_tokens > self.facts.context_len:
            # llama-server would answer and silently stop early.
            raise RequestRefused(
                f"{self.facts.engine}: {request.prompt_len} + {request.max_tokens} tokens do not fit a slot of "
                f"{self.facts.context_len}; raise `n_ctx` or lower `n_parallel`"
            )
        body = body_of(request, progress=self._log is None)
        sent_ns = sending_ns(request)
        try:
            return Timed(request=request, sent_ns=sent_ns, events=list(client.stream("/completion", body)))
        except EngineFailed as error:
            if UNFIT_OUTPUT in str(error):
                raise unfit_output() from None
            raise self._failure(error) from None

    def _failure(self, error: EngineFailed) -> EngineFailed:
        return error if self._process is None else self._process.failure(error)

    def _located(self, exchanges: Sequence[Timed]) -> list[Reply]:
        """Decode and add what the log says.

        Log and reply share the slot only. Of requests sent together several may have used one slot, and the order in
        which our threads saw their ends is not the server's: there the runs are dealt out by what they reused, so that
        hits and positions of a slot are compared as a whole.
        """
        try:
            replies = [reply_of(timed) for timed in exchanges]
        except EngineFailed as error:
            raise self._failure(error) from None
        if self._log is None:
            return replies
        runs = self._log.finished(len(replies))
        for slot in {reply.native["id_slot"] for reply in replies}:
            mine = sorted((r for r in replies if r.native["id_slot"] == slot), key=lambda reply: reply.hit_len or 0)
            # The last ones: a run whose reply could not be used comes before them.
            theirs = [run for run in runs if run.slot == slot][-len(mine) :]
            if len(theirs) < len(mine):
                continue
            for reply, run in zip(mine, sorted(theirs, key=lambda run: run.starts[0]), strict=True):
                replies[replies.index(reply)] = replace(
                    reply,
                    position_start=run.starts[0],
                    position_source="engine.log: memory_seq_rm [N, end)",
                    steps=spans(run.starts, reply.prompt_len),
                )
        return replies
