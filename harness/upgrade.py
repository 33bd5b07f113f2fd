"""Reading records that an earlier hitparity wrote.

A field that did not exist then is `null` now where the model allows it: unknown, not guessed. A field that no longer
exists is left out. Both are said. A record of a later schema, or one that lacks a field that cannot be unknown, is
refused.
"""

from __future__ import annotations

import json
import re
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
VERSION = re.compile("[0-9]{1,9}")


class LaterSchema(ValueError):
    """The record was written by a later hitparity than this one."""


def read_record(model: type[Model], text: str | bytes) -> tuple[Model, str]:
    """The record, and what had to be left open to read it (empty: nothing).

    Raises pydantic's ValidationError for a text that is no such record, LaterSchema for one of a later schema.
    """
    try:
        return model.model_validate_json(text), ""
    except ValidationError:
        document = _object(text)
        if document is None:
            raise
        upgraded, remark = _upgraded(model, document)
        if not remark:
            raise
    return model.model_validate_json(json.dumps(upgraded)), remark


def _object(text: str | bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _upgraded(model: type[BaseModel], document: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The document with today's fields, and what that took; "" where it is not an older record of ours."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    (current,) = get_args(fields["schema"].annotation)
    name, number = current.rsplit("/", 1)
    found = str(document.get("schema", ""))
    if found.rsplit("/", 1)[0] != name or not VERSION.fullmatch(found.rsplit("/", 1)[-1]):
        return document, ""
    if int(found.rsplit("/", 1)[1]) > int(number):
        raise LaterSchema(f"it is a {found} record and this hitparity reads up to {current}; install a later hitparity")
    missing = [key for key, field in fields.items() if key not in document and field.is_required()]
    open_now = [key for key in missing if NoneType in get_args(fields[key].annotation)]
    dropped = [] if found == current else [key for key in document if key not in fields]
    parts = [f"written as {found}, read as {current}"] if found != current else []
    parts += [f"no {', '.join(open_now)} (unknown)"] if open_now else []
    parts += [f"{', '.join(dropped)} left out"] if dropped else []
    kept = {key: value for key, value in document.items() if key not in dropped}
    return kept | dict.fromkeys(open_now) | {"schema": current}, "; ".join(parts)
