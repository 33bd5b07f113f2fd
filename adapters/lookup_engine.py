"""What the lookup workers of all systems share on the harness's side: sending, facts, checked options."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, ValidationError

from adapters.base import EngineSpec, Options
from adapters.checked import facts_from
from adapters.worker import Worker
from reference_engine.laws.registry import LAWS, make_law
from vocabulary.engine import EngineFacts, Fidelity, Mode, Reply, TokenRequest
from vocabulary.errors import EngineFailed, LawDoesNotCover, UsageError
from vocabulary.groups import parse_groups

NOTE = "the engine's own scheduler and cache code; no model ran"
CoveringLaw = Callable[[Mapping[str, Any]], tuple[str, dict[str, Any]]]
"""The engine's resolved options to the law's id and options; LawDoesNotCover where there is none."""
O = TypeVar("O", bound=Options)  # noqa: E741


def _parsed(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("at least one layer group is needed")
    try:
        parse_groups(value)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return value


Groups = Annotated[tuple[str, ...], AfterValidator(_parsed)]
"""Layer groups as texts, such as ("full:16", "swa:16:128")."""


class LookupEngine:
    """`adapters.lookup.Lookup` (but for `reconfigure`) and `vocabulary.engine.Engine` over one worker."""

    facts: EngineFacts

    def __init__(self, worker: Worker, spec: EngineSpec) -> None:
        self._worker, self._spec = worker, spec

    def send(self, request: TokenRequest, outputs: Sequence[int] = ()) -> Reply:
        """Serve one request to its end."""
        return self._send([request], [outputs])[0]

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Submit all before the first scheduler step."""
        return self._send(requests, [()] * len(requests))

    def reset(self) -> bool:
        """Empty the cache."""
        return self._worker.reset()

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _send(self, requests: Sequence[TokenRequest], outputs: Sequence[Sequence[int]]) -> list[Reply]:
        message = {
            "op": "send",
            "requests": [
                {
                    "request_id": request.request_id,
                    # A prompt of thousands of IDs takes longer as JSON numbers than the lookup does.
                    "ids": base64.b64encode(np.asarray(request.ids, "<u4").tobytes()).decode(),
                    "outputs": [int(each) for each in generated],
                    "max_tokens": request.max_tokens,
                    "namespace": request.namespace,
                    "lora": request.lora,
                    "media": [[item.identifier, item.start, item.length] for item in request.media],
                    "features": sorted(request.features),
                }
                for request, generated in zip(requests, outputs, strict=True)
            ],
        }
        return self._worker.replies(message, requests)

    def _complete(self, raw: Mapping[str, Any], covering: CoveringLaw) -> EngineFacts:
        """The worker's facts with the law that covers the configuration, or a note why none does."""
        engine, version = self._spec.engine, self._spec.version
        if raw["version"] != version:
            raise EngineFailed(f"{engine} {version}: the worker runs version {raw['version']}")
        notes = [NOTE, *raw.get("notes", ())]
        law: str | None = None
        law_options: dict[str, Any] = {}
        try:
            law, law_options = covering(raw["options"])
        except LawDoesNotCover as error:
            notes.append(str(error))
        more = {"law": law, "law_options": law_options, "notes": notes}
        return facts_from(raw, engine=engine, mode=Mode.WORKER, fidelity=Fidelity.LOOKUP, **more)


def covered(law_id: str, options: Callable[[], dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Law id and its options if such a law takes them; LawDoesNotCover with the reason otherwise."""
    if law_id not in LAWS:
        raise LawDoesNotCover(f"no law {law_id}")
    taken = options()
    try:
        make_law(law_id, taken)
    except UsageError as error:  # an option that the law does not read
        raise LawDoesNotCover(str(error)) from None
    return law_id, taken


def checked(kind: type[O], options: Mapping[str, Any]) -> O:
    """Options from a mapping; UsageError names the wrong one and the nearest known name."""
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        near = difflib.get_close_matches(name, kind.model_fields, n=1) if first["type"] == "extra_forbidden" else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"lookup option {name!r}: {first['msg']}{hint}") from None
