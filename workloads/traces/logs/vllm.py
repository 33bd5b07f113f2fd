"""vLLM's request log: `vllm serve ... --enable-log-requests` with VLLM_LOGGING_LEVEL=DEBUG, which shows the IDs.

    DEBUG 11-30 01:48:45 [...] Request cmpl-1-0 details: prompt: 'Hi', prompt_token_ids: [72, 105], prompt_embeds ...
    INFO 11-30 01:48:45 [...] Received request cmpl-1-0: params: SamplingParams(..., max_tokens=5, ...), lora_...
    DEBUG 11-30 01:48:46 [...] Generated response chatcmpl-1 details: output_token_ids: [523, 480]

Read in vLLM 0.32.0, vllm/entrypoints/serve/utils/request_logger.py, and from a server's own log. Answers are logged
with `--enable-log-outputs`, for chats only; a cache salt only in the request's JSON body, another line of the same
level. Times are by the second and without a year.
`--max-log-len` cuts prompts without a word: the longest length is noted where many prompts have it exactly.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from workloads.traces.base import lines
from workloads.traces.logs.base import InOrder, LoggedRequest, LogReport

PROMPT = re.compile(
    r"\bRequest (\S+) details: prompt: .*prompt_token_ids: (\[[\d, ]*\]|None), prompt_embeds shape: ", re.DOTALL
)
RECEIVED = re.compile(r"\bReceived request (\S+): params: (.*), lora_request: (.*)\.\s*$", re.DOTALL)
ANSWER = re.compile(r"\bGenerated response (\S+)( \(streaming \w+\))? details: output_token_ids: (\[[\d, ]*\]|None)")
BODY = re.compile(r"\bRequest (\S+) JSON body: (\{.*)", re.DOTALL)
SALT = re.compile(r'"cache_salt":"((?:[^"\\]|\\.)*)"')
NUMBER = re.compile(r"-\d+$")
"""Behind the name of a request in the name of its prompt, unless it is a chat."""
LORA_NAME = re.compile(r"lora_name='([^']*)'")
MAX_TOKENS = re.compile(r"\bmax_tokens=(\d+)")
CLOCK = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
SUSPICIOUS = 3
"""So many prompts of the longest length, and no longer one, look like a cut."""


def read(path: Path, report: LogReport) -> Iterator[LoggedRequest]:
    """Requests in the order of arrival. UsageError where the file cannot be read."""
    log = _Log(report)
    for number, raw in lines(path):
        text = raw.decode(errors="replace")
        if found := PROMPT.search(text):
            log.prompt(number, text, *found.groups())
        elif found := RECEIVED.search(text):
            yield from log.received(number, *found.groups())
        elif found := ANSWER.search(text):
            yield from log.answer(*found.groups())
        elif found := BODY.search(text):
            log.body(*found.groups())
    yield from log.waiting.rest()
    log.note()


class _Log:
    """What is known at some line of the log."""

    def __init__(self, report: LogReport) -> None:
        self.waiting = InOrder()
        self._report = report
        self._lengths: Counter[int] = Counter()
        self._salts: dict[str, str] = {}
        self._bodies = False

    def body(self, request: str, body: str) -> None:
        self._bodies = True
        if found := SALT.search(body):
            self._salts[request] = found.group(1)

    def prompt(self, line: int, text: str, name: str, ids: str) -> None:
        if ids == "None":
            self._report.skip(line, f"request {name} has no token IDs (embeddings)")
            return
        request = name.removeprefix("chat").removeprefix("cmpl-")
        salt = self._salts.pop(request, None) or self._salts.pop(NUMBER.sub("", request), None)
        made = LoggedRequest(line=line, ids=_ids(ids), arrival_ns=_clock_ns(text), namespace=salt)
        self._lengths[len(made.ids)] += 1
        self.waiting.arrived(name, made)

    def received(self, line: int, name: str, params: str, lora: str) -> Iterator[LoggedRequest]:
        known = self.waiting.get(name)
        if known is None:
            self._report.skip(line, f"request {name} came without token IDs; VLLM_LOGGING_LEVEL=DEBUG shows them")
            return
        if adapter := LORA_NAME.search(lora):
            known.lora = adapter.group(1)
        if limit := MAX_TOKENS.search(params):
            known.output_len = int(limit.group(1))
        if not name.startswith("chatcmpl-"):
            yield from self.waiting.finished(name)

    def answer(self, name: str, streaming: str | None, ids: str) -> Iterator[LoggedRequest]:
        known = self.waiting.get(name)
        if known is None:
            return
        if ids != "None":
            before = [] if known.output_ids is None else [known.output_ids]
            known.output_ids = np.concatenate([*before, _ids(ids)])
        if streaming != " (streaming delta)":
            yield from self.waiting.finished(name)

    def note(self) -> None:
        longest = max(self._lengths, default=0)
        if self._lengths[longest] >= SUSPICIOUS:
            self._report.notes.append(
                f"{self._lengths[longest]} prompts have exactly {longest} tokens and none has more: if --max-log-len "
                f"was set, they were cut in the log"
            )
        if not self._bodies:
            self._report.notes.append(
                "no cache salts were logged: where clients use any, requests seem to share that never do"
            )


def _ids(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.fromstring(text[1:-1], np.int32, sep=",") if len(text) > 2 else np.empty(0, np.int32)


def _clock_ns(text: str) -> int | None:
    """Since the beginning of some year: the log names none."""
    if (found := CLOCK.search(text)) is None:
        return None
    month, day, hour, minute, second = map(int, found.groups())
    stamp = datetime.datetime(2000, month, day, hour, minute, second, tzinfo=datetime.UTC)
    begin = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    return int((stamp - begin).total_seconds()) * 1_000_000_000
