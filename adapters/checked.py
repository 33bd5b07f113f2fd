"""Engine output as our own types: fields of the right types only, times that run forwards. Nothing is converted."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from vocabulary.engine import EngineFacts, Reply
from vocabulary.errors import EngineFailed

T = TypeVar("T")

# Building one takes longer than a lookup.
VALIDATORS: dict[type[Any], TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (EngineFacts, Reply)}


def reply_from(engine: str, fields: Any) -> Reply:
    """A Reply from JSON values, lists standing for tuples.

    Raises EngineFailed where a field is missing, unknown or of another type, or a time lies before the one it follows.
    """
    reply = _checked(Reply, fields, f"{engine}: reply")
    times = [reply.sent_ns, *([] if reply.first_token_ns is None else [reply.first_token_ns]), reply.done_ns]
    if times != sorted(times):
        raise EngineFailed(f"{engine}: reply: its times run backwards (sent, first token, done: {times} ns)")
    return reply


def facts_from(raw: Mapping[str, Any], **more: Any) -> EngineFacts:
    """EngineFacts from a started engine's own fields; `more` adds what the adapter knows (mode, law, ...).

    Raises EngineFailed where a field is missing, unknown or of another type.
    """
    fields = dict(raw) | more
    return _checked(EngineFacts, fields, f"{fields.get('engine', 'worker')}: facts")


def _checked(kind: type[T], fields: Any, whose: str) -> T:
    if isinstance(fields, Mapping) and (unknown := set(fields) - set(inspect.signature(kind).parameters)):
        raise EngineFailed(f"{whose}: unknown field {', '.join(sorted(unknown))}")
    try:
        checked: T = VALIDATORS[kind].validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise EngineFailed(f"{whose}: {field}: {first['msg']}") from None
    return checked
