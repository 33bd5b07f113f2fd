"""Decodes the event stream of SGLang's POST /generate.

Each event of a stream carries all output ids so far and the whole `meta_info`; SGLang refuses a request
inside a stream of status 200, as an `error` event or as a finish reason "abort" (0.5.23, executed).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vocabulary.errors import EngineFailed, RequestRefused

KEPT = ("cached_tokens_details", "completion_tokens", "finish_reason", "num_retractions", "e2e_latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One decoded stream."""

    rid: str
    """Of the request that the server says it answered."""
    prompt_len: int
    hit_len: int
    output_ids: tuple[int, ...]
    first_logprob: float | None
    """Natural log; None unless log-probabilities were asked for."""
    first_token_ns: int | None
    done_ns: int
    native: dict[str, Any]


def decode(events: Iterable[tuple[int, Any]]) -> Answer:
    """Read `(monotonic_ns, event)` pairs to their end.

    Raises RequestRefused when SGLang refuses the request, EngineFailed when the stream ends without a
    finish reason or is not of the known form.
    """
    first_ns: int | None = None
    last_ns = 0
    last: dict[str, Any] = {}
    try:
        for last_ns, event in events:
            last = event
            if "error" in event:
                kind = RequestRefused if 400 <= event["error"]["code"] < 500 else EngineFailed
                raise kind(f"sglang: {event['error']['message']}")
            reason = last["meta_info"]["finish_reason"]
            if reason and reason["type"] == "abort":
                raise RequestRefused(f"sglang: {reason.get('message') or 'the request was aborted'}")
            if first_ns is None and last["output_ids"]:
                first_ns = last_ns
        if not last or not last["meta_info"]["finish_reason"]:
            raise EngineFailed("sglang: the reply ended before the request had finished")
        info = last["meta_info"]
        logprobs = info.get("output_token_logprobs")
        return Answer(
            rid=str(info["id"]),
            prompt_len=info["prompt_tokens"],
            hit_len=info["cached_tokens"],
            output_ids=tuple(last["output_ids"]),
            first_logprob=float(logprobs[0][0]) if logprobs else None,
            first_token_ns=first_ns,
            done_ns=last_ns,
            native={key: info[key] for key in KEPT if key in info},
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EngineFailed(f"sglang: /generate sent an event of unknown form ({error!r}): {str(last)[:300]}") from None
