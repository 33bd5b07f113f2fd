"""Encodes a request for vLLM's `/v1/completions` and decodes its server-sent events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import EngineFailed, RequestRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What one stream of events said."""

    response_id: str
    prompt_len: int
    hit_len: int | None
    output_ids: tuple[int, ...]
    first_logprob: float | None
    first_token_ns: int | None


def body(request: TokenRequest, served_name: str, request_id: str) -> dict[str, Any]:
    """The JSON body that asks for exactly this request."""
    fields: dict[str, Any] = {
        "model": served_name,
        "prompt": list(request.ids),
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "request_id": request_id,
    }
    if request.namespace is not None:
        fields["cache_salt"] = request.namespace
    if Feature.LOGPROB in request.features:
        fields["logprobs"] = 0  # no alternatives: the chosen token's own
    if Feature.PROMPT_LOGPROBS in request.features:
        fields["prompt_logprobs"] = 0  # the only value that may be streamed; it already turns the lookup off
    return fields


def decode(request: TokenRequest, events: Iterable[tuple[int, Any]]) -> Transcript:
    """Read `(monotonic_ns, decoded data)` events up to the end.

    Raises RequestRefused or EngineFailed for an error event, and EngineFailed when the stream is cut short or of
    unknown form, or the server computed another prompt than was sent.
    """
    seen = list(events)
    try:
        return _read(request, seen)
    except (LookupError, TypeError, AttributeError) as error:
        raise EngineFailed(f"vllm: sent an event of unknown form ({error!r}): {str(seen[-1][1])[:300]}") from None


def _read(request: TokenRequest, events: Iterable[tuple[int, Any]]) -> Transcript:
    output_ids: list[int] = []
    echoed: list[int] | None = None
    first_logprob = first_token_ns = usage = None
    response_id = ""
    for now, event in events:
        if "error" in event:
            _raise(event["error"])
        usage, response_id = event.get("usage") or usage, str(event.get("id", response_id))
        for choice in event["choices"]:
            echoed = choice.get("prompt_token_ids") or echoed
            if not (ids := choice.get("token_ids")):
                continue
            if first_token_ns is None:
                first_token_ns = now
                if logprobs := choice.get("logprobs"):
                    first_logprob = logprobs["token_logprobs"][0]
            output_ids += ids
    if usage is None:
        raise EngineFailed("vllm: the stream ended without a usage record")
    if echoed is None or tuple(echoed) != request.ids:
        raise EngineFailed("vllm: the server did not confirm the prompt token IDs it was sent")
    if len(output_ids) != request.max_tokens:
        raise EngineFailed(f"vllm: generated {len(output_ids)} tokens, {request.max_tokens} were asked for")
    details = usage.get("prompt_tokens_details")
    return Transcript(
        response_id=response_id,
        prompt_len=usage["prompt_tokens"],
        hit_len=None if details is None else details.get("cached_tokens"),
        output_ids=tuple(output_ids),
        first_logprob=first_logprob,
        first_token_ns=first_token_ns,
    )


def _raise(error: Any) -> None:
    message, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error, None)
    if isinstance(code, int) and 400 <= code < 500:
        raise RequestRefused(f"vllm: refused with {code}: {message}")
    raise EngineFailed(f"vllm: {message}")
