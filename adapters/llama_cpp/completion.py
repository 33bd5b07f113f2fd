"""`POST /completion` as bodies and replies. Source of the fields: llama.cpp b11549, tools/server, observed.

timings.cache_n    tokens taken from the cache      timings.prompt_n    tokens computed; the two add up to L
tokens_evaluated   L (not the number evaluated)     id_slot             valid in the last event only
prompt_progress    {cache, processed, total}; its event carries a meaningless `tokens: [0]`
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapters.checked import reply_from
from vocabulary.engine import Feature, Reply, Span, TokenRequest
from vocabulary.errors import EngineFailed, RequestRefused

UNFIT_OUTPUT = "does not match the expected"
"""Of the HTTP 500 with which older builds answer output that is not whole UTF-8 characters."""
Events = Sequence[tuple[int, dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The events of one streamed completion with the time each was read, in monotonic ns."""

    request: TokenRequest
    sent_ns: int
    events: Events


def body_of(request: TokenRequest, *, progress: bool) -> dict[str, Any]:
    """Body of a streamed greedy completion of exactly `max_tokens` tokens.

    RequestRefused for what llama-server has no means to honour.
    """
    if request.namespace is not None:
        raise RequestRefused("llama.cpp: has no cache salt; send this request without a namespace")
    if unknown := request.features - {Feature.LOGPROB}:
        raise RequestRefused(f"llama.cpp: cannot do {', '.join(sorted(unknown))}")
    body: dict[str, Any] = {
        "prompt": list(request.ids),
        "n_predict": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": True,
        "stream": True,
        "return_tokens": True,
    }
    if progress:
        body["return_progress"] = True
    if Feature.LOGPROB in request.features:
        body["n_probs"] = 1
    return body


def reply_of(timed: Timed) -> Reply:
    """Decode a stream; `position_start` and `steps` come from its progress events when it has any.

    EngineFailed where the server contradicts itself, breaks off or is not understood; RequestRefused where it refuses.
    """
    try:
        return _read(timed)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        last = str(timed.events[-1][1] if timed.events else None)[:300]
        raise EngineFailed(f"llama.cpp: sent an event of unknown form ({error!r}), the last one: {last}") from None


def _read(timed: Timed) -> Reply:
    request = timed.request
    output, first_ns, logprob, processed = [], None, None, []
    for read_ns, event in timed.events:
        if "error" in event:
            raise _error(event["error"])
        if (progress := event.get("prompt_progress")) is not None:
            processed.append(progress["processed"])
        elif event.get("tokens"):
            if first_ns is None:
                first_ns = read_ns
                logprob = _logprob(event)
            output += event["tokens"]
    done_ns, last = timed.events[-1] if timed.events else (0, {})
    if not last.get("stop") or "timings" not in last:
        raise EngineFailed("llama.cpp: the stream of /completion ended without a final event with timings")
    hit = last["timings"].get("cache_n")
    length, computed = last["tokens_evaluated"], last["timings"]["prompt_n"]
    if hit is not None and hit + computed != length:
        raise EngineFailed(f"llama.cpp: cache_n {hit} + prompt_n {computed} is not its prompt length {length}")
    if len(output) != request.max_tokens:
        raise _missing_output(len(output), last)
    fields = {
        "request_id": request.request_id,
        "prompt_len": length,
        "hit_len": hit,
        "hit_source": "timings.cache_n" if hit is not None else "none",
        "position_start": processed[0] if processed else None,
        "position_source": "prompt_progress.processed, first event" if processed else "none",
        "output_ids": tuple(output),
        "first_logprob": logprob,
        "sent_ns": timed.sent_ns,
        "first_token_ns": first_ns,
        "done_ns": done_ns,
        "steps": spans(processed, length) if processed else None,
        "native": {"id_slot": last["id_slot"], "tokens_cached": last.get("tokens_cached"), "timings": last["timings"]},
    }
    return reply_from("llama.cpp", fields)


def spans(starts: Sequence[int], end: int) -> tuple[Span, ...]:
    """Prefill steps from the positions where they begin."""
    bounds = [*starts, end]
    return tuple((a, b) for a, b in itertools.pairwise(bounds) if a < b)


def unfit_output() -> RequestRefused:
    """The prompt was computed, and the slot keeps it; its output cannot be handed over as IDs."""
    return RequestRefused(
        "llama.cpp: generated a token that ends inside a UTF-8 character, whose ID llama-server does not stream. The "
        "prompt was computed and stays cached; use another prompt, or a tokenizer without partial characters"
    )


def _logprob(event: dict[str, Any]) -> float | None:
    probabilities = event.get("completion_probabilities")
    return float(probabilities[0]["logprob"]) if probabilities else None


def _missing_output(got: int, last: dict[str, Any]) -> EngineFailed | RequestRefused:
    asked = last.get("tokens_predicted")
    if asked is not None and got < asked:
        return unfit_output()
    return EngineFailed(
        f"llama.cpp: stopped after {got} tokens, stop_type {last.get('stop_type')!r}, truncated {last.get('truncated')}"
    )


def _error(error: Any) -> EngineFailed | RequestRefused:
    message = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    if UNFIT_OUTPUT in message:
        return unfit_output()
    refused = isinstance(error, dict) and 400 <= int(error.get("code", 500)) < 500
    return RequestRefused(f"llama.cpp: refused: {message}") if refused else EngineFailed(f"llama.cpp: {message}")
