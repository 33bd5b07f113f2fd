"""Bodies of the OpenAI API, one JSON object a line, tokenised with the served model's own tokenizer and chat template.

    {"messages": [...], "tools": [...]}                                            a body
    {"timestamp": "2026-11-30T01:50:36Z", "body": {...}, "response": {...}}        a body with its time and its answer

The body may lie under `body` (as in batch files), `request` or `payload`; the time under `timestamp`, `time`,
`created_at`, `created` or `ts`, in ISO 8601 or in seconds since 1970. `usage` of the response is compared with our own
count: where they differ, the server used another template, tokenizer or default than we did, and the report says in how
many rows. An answer's IDs are its text tokenised, which need not be what was generated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workloads.traces.base import MalformedRow, TokenIds, lines
from workloads.traces.logs.base import LoggedRequest, LogReport, iso_ns
from workloads.traces.logs.template import ChatTokenizer

BODY_KEYS = ("body", "request", "payload")
TIME_KEYS = ("timestamp", "time", "created_at", "created", "ts")
SESSION_KEYS = ("session_id", "conversation_id")


def read(path: Path, report: LogReport, tokenizer: ChatTokenizer) -> Iterator[LoggedRequest]:
    """Requests in file order; UsageError where the file cannot be read, rows that cannot be used are counted."""
    compared = differ = 0
    for number, raw in lines(path):
        if raw.isspace():
            continue
        try:
            row = json.loads(raw)
            if not isinstance(row, dict):
                raise MalformedRow("not a JSON object")
            request = _request(row, number, tokenizer)
        except (ValueError, RecursionError) as error:
            report.skip(number, str(error))
            continue
        if request.prompt_len is not None:
            compared += 1
            differ += request.prompt_len != len(request.ids)
        yield request
    if differ:
        report.notes.append(
            f"{differ} of {compared} prompts have another length by the server's own count: it uses another chat "
            f"template, tokenizer or default than {tokenizer.folder}, and what these prompts share is not certain"
        )
    elif compared:
        report.notes.append(f"all {compared} prompts that the server counted have the length it says")


def _request(row: Mapping[str, Any], line: int, tokenizer: ChatTokenizer) -> LoggedRequest:
    body = next((row[key] for key in BODY_KEYS if isinstance(row.get(key), dict)), row)
    response = row.get("response")
    answer = response.get("body", response) if isinstance(response, dict) else None  # batch outputs nest it once more
    answer = answer if isinstance(answer, dict) else {}
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    output = _answer_text(answer)
    return LoggedRequest(
        line=line,
        ids=_prompt(body, tokenizer),
        arrival_ns=_time(row),
        output_ids=None if output is None else tokenizer.encode(output),
        output_len=usage.get("completion_tokens"),
        session=next((str(each[key]) for each in (row, body) for key in SESSION_KEYS if each.get(key)), None),
        namespace=body.get("cache_salt"),
        hit_len=details.get("cached_tokens"),
        prompt_len=usage.get("prompt_tokens"),
    )


def _prompt(body: Mapping[str, Any], tokenizer: ChatTokenizer) -> TokenIds:
    if "messages" in body:
        return tokenizer.chat(body)
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, special=True)
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        return np.array(prompt, np.int32)
    raise MalformedRow("no `messages`, and no `prompt` of one text or one list of token IDs")


def _answer_text(answer: Mapping[str, Any]) -> str | None:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    message = choices[0].get("message")
    text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
    return text if isinstance(text, str) and text else None


def _time(row: Mapping[str, Any]) -> int | None:
    for key in TIME_KEYS:
        value = row.get(key)
        if isinstance(value, str):
            return iso_ns(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return round(value * 1e6) * 1000
    return None
