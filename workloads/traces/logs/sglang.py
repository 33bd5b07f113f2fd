"""SGLang's request log: `--log-requests --log-requests-level 3`, as text or with `--log-requests-format json`.

    [2026-11-30 01:50:36] Receive: obj=GenerateReqInput(rid='r0', ..., input_ids=[100, 101], ..., cache_salt=None, ...)
    [2026-11-30 01:50:36] Finish: obj=GenerateReqInput(rid='r0', ...), out={'output_ids': [523], 'meta_info': {...}}
    [2026-11-30 01:52:10] {"timestamp": "...", "event": "request.finished", "rid": "r0", "obj": {...}, "out": {...}}

Read in SGLang 0.5.23, sglang/srt/utils/request_logger.py, and from a server's own log. Level 3 cuts nothing; level 2
cuts lists after 2,048 entries (such requests are skipped), lower ones show no IDs. A prompt sent as text has IDs in no
line of the log: send IDs, or import the OpenAI bodies (openai.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workloads.traces.base import TokenIds, lines
from workloads.traces.logs.base import InOrder, LoggedRequest, LogReport, iso_ns

TEXT = re.compile(r"^\[([\d -]+ [\d:]+)[^\]]*\] (Receive|Finish): obj=(?:GenerateReqInput)\((.*)", re.DOTALL)
JSON_AT = re.compile(r'\{"timestamp": ')
OUT = re.compile(r"\), (?:headers=\{.*?\}, )?out=\{")
ID_LIST = r"(\[[\d, ]*\])"
CUT = re.compile(r"\binput_ids=\[[\d, ]*\] \.\.\. \[")


def read(path: Path, report: LogReport) -> Iterator[LoggedRequest]:
    """Requests in the order of arrival. UsageError where the file cannot be read."""
    waiting = InOrder()
    for number, raw in lines(path):
        text = raw.decode(errors="replace")
        if found := JSON_AT.search(text):
            event = _json_event(text[found.start() :], number, report)
        else:
            event = _text_event(text, number, report)
        if event is None:
            continue
        finished, name, request = event
        if not finished:
            waiting.arrived(name, request)
            continue
        known = waiting.get(name)
        if known is None:  # the log begins in the middle
            waiting.arrived(name, request)
        else:
            known.output_ids, known.hit_len, known.prompt_len = (
                request.output_ids,
                request.hit_len,
                request.prompt_len,
            )
        yield from waiting.finished(name)
    yield from waiting.rest()


def _json_event(text: str, line: int, report: LogReport) -> tuple[bool, str, LoggedRequest] | None:
    try:
        entry = json.loads(text)
    except ValueError:
        report.skip(line, "a JSON event that breaks off")
        return None
    event, obj = entry.get("event"), entry.get("obj")
    if event not in ("request.received", "request.finished") or not isinstance(obj, dict):
        return None
    ids = _id_array(obj.get("input_ids"))
    if ids is None:
        _no_ids(line, event == "request.received", report, cut="..." in (obj.get("input_ids") or ()))
        return None
    out = entry.get("out") or {}
    meta = out.get("meta_info") or {}
    request = LoggedRequest(
        line=line,
        ids=ids,
        arrival_ns=iso_ns(entry["timestamp"]),
        output_ids=_id_array(out.get("output_ids")),
        session=obj.get("session_id"),
        namespace=obj.get("cache_salt") or obj.get("extra_key"),
        lora=obj.get("lora_path"),
        hit_len=meta.get("cached_tokens"),
        prompt_len=meta.get("prompt_tokens"),
    )
    return event == "request.finished", str(entry.get("rid") or line), request


def _text_event(text: str, line: int, report: LogReport) -> tuple[bool, str, LoggedRequest] | None:
    if (found := TEXT.match(text)) is None:
        return None
    stamp, verb, fields = found.groups()
    end = OUT.search(fields)
    out = fields[end.end() :] if end else ""
    fields = fields[: end.start()] if end else fields
    ids = re.search(rf"\binput_ids={ID_LIST}, ", fields)
    if ids is None:
        _no_ids(line, verb == "Receive", report, cut=CUT.search(fields) is not None)
        return None
    output = re.search(rf"'output_ids': {ID_LIST}", out)
    request = LoggedRequest(
        line=line,
        ids=_parsed(ids.group(1)),
        arrival_ns=iso_ns(stamp),
        output_ids=_parsed(output.group(1)) if output else None,
        session=_quoted(fields, "session_id"),
        namespace=_quoted(fields, "cache_salt") or _quoted(fields, "extra_key"),
        lora=_quoted(fields, "lora_path"),
        hit_len=_number(out, "cached_tokens"),
        prompt_len=_number(out, "prompt_tokens"),
    )
    return verb == "Finish", _quoted(fields, "rid") or str(line), request


def _no_ids(line: int, arriving: bool, report: LogReport, *, cut: bool) -> None:
    if arriving:
        why = (
            "its token IDs are cut; --log-requests-level 3 shows all"
            if cut
            else "it was sent as text, or the level hides IDs"
        )
        report.skip(line, f"no token IDs: {why}")


def _id_array(value: Any) -> TokenIds | None:
    if isinstance(value, list) and value and set(map(type, value)) <= {int}:
        return np.array(value, np.int32)
    return None


def _parsed(text: str) -> TokenIds:
    return np.fromstring(text[1:-1], np.int32, sep=",") if len(text) > 2 else np.empty(0, np.int32)


def _quoted(fields: str, name: str) -> str | None:
    found = re.search(rf"\b{name}='([^']*)'", fields)
    return found.group(1) if found else None


def _number(fields: str, name: str) -> int | None:
    found = re.search(rf"'{name}': (\d+)", fields)
    return int(found.group(1)) if found else None
