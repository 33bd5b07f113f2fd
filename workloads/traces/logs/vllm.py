"""vLLM's request log: `vllm serve ... --enable-log-requests` with VLLM_LOGGING_LEVEL=DEBUG, which shows the IDs.

    DEBUG 11-30 01:48:45 [...] Request cmpl-1-0 details: prompt: 'Hi', prompt_token_ids: [72, 105], prompt_embeds ...
    INFO 11-30 01:48:45 [...] Received request cmpl-1-0: params: SamplingParams(..., max_tokens=5, ...), lora_...
    DEBUG 11-30 01:48:46 [...] Generated response chatcmpl-1 details: output_token_ids: [523, 480]

Read in vLLM 0.32.0, vllm/entrypoints/serve/utils/request_logger.py, and from a server's own log. Answers are logged
with `--enable-log-outputs`, for chats only. The log shows no cache salt, times by the second and no year.
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
LORA_NAME = re.compile(r"lora_name='([^']*)'")
MAX_TOKENS = re.compile(r"\bmax_tokens=(\d+)")
CLOCK = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
SUSPICIOUS = 3
"""So many prompts of the longest length, and no longer one, look like a cut."""


def read(path: Path, report: LogReport) -> Iterator[LoggedRequest]:
    """Requests in the order of arrival. UsageError where the file cannot be read."""
    waiting = InOrder()
    lengths: Counter[int] = Counter()
    for number, raw in lines(path):
        text = raw.decode(errors="replace")
        if found := PROMPT.search(text):
            name, ids = found.groups()
            if ids == "None":
                report.skip(number, f"request {name} has no token IDs (embeddings)")
                continue
            request = LoggedRequest(line=number, ids=_ids(ids), arrival_ns=_clock_ns(text))
            lengths[len(request.ids)] += 1
            waiting.arrived(name, request)
        elif found := RECEIVED.search(text):
            name, params, lora = found.groups()
            known = waiting.get(name)
            if known is None:
                report.skip(number, f"request {name} came without token IDs; VLLM_LOGGING_LEVEL=DEBUG shows them")
                continue
            if adapter := LORA_NAME.search(lora):
                known.lora = adapter.group(1)
            if limit := MAX_TOKENS.search(params):
                known.output_len = int(limit.group(1))
            if not name.startswith("chatcmpl-"):
                yield from waiting.finished(name)
        elif found := ANSWER.search(text):
            name, streaming, ids = found.groups()
            known = waiting.get(name)
            if known is not None and ids != "None" and streaming != " (streaming delta)":
                known.output_ids = _ids(ids)
                yield from waiting.finished(name)
    yield from waiting.rest()
    if lengths and lengths[max(lengths)] >= SUSPICIOUS:
        report.notes.append(
            f"{lengths[max(lengths)]} prompts have exactly {max(lengths)} tokens and none has more: if --max-log-len "
            f"was set, they were cut in the log"
        )
    report.notes.append(
        "the log shows no cache salts: requests that never share look as if they did where clients use any"
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
