"""What was computed and what was made findable: the ledger's ceilings that both TensorRT-LLM laws share.

In this engine the two differ: blocks become findable when a context ends, a request ends, or a snapshot is declared.
"""

from __future__ import annotations

import json

from reference_engine.laws.base import Ids, Lease
from reference_engine.laws.parts.history import History, common_prefix
from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import LawDoesNotCover
from vocabulary.ledger import Cause


def scope_of(request: TokenRequest) -> str | None:
    """What keeps equal prefixes apart: adapter and cache salt; the same for both managers.

    Adapters are told apart by the text of `TokenRequest.lora`; the engine uses the task ID that its caller chose.
    """
    if request.lora is None and request.namespace is None:
        return None
    return json.dumps([request.lora, request.namespace])


class Published:
    """Tokens computed so far and tokens that a lookup can find, by scope."""

    def __init__(self) -> None:
        self._computed, self._findable = History(), History()
        self._live: set[Lease] = set()

    @property
    def live(self) -> frozenset[Lease]:
        """Leases admitted and not released."""
        return frozenset(self._live)

    def admitted(self, law_id: str, request: TokenRequest) -> None:
        """Refuse the features no rule here states."""
        for feature in (Feature.PROMPT_LOGPROBS, Feature.SKIP_LOOKUP):
            if feature in request.features:
                raise LawDoesNotCover(
                    f"{law_id}: no law for requests with {feature}; send {request.request_id} without"
                )

    def open(self, lease: Lease) -> None:
        """A lease begins."""
        self._live.add(lease)

    def close(self, lease: Lease) -> None:
        """A lease ends; what it computed is remembered."""
        self._live.remove(lease)
        self._computed.add(lease.ids[: lease.computed_len], scope_of(lease.request))

    def findable(self, ids: Ids, scope: str | None) -> None:
        """All of `ids` can be found from now on."""
        self._findable.add(ids, scope)

    def ceilings(self, request: TokenRequest, unpublished: Cause) -> list[tuple[Cause, int]]:
        """The ceilings down to what could be found at best.

        `unpublished` is the cause of tokens whose request is over and that never became findable.
        """
        ids, scope = request.array, scope_of(request)
        running = max(
            (common_prefix(e.ids[: e.computed_len], ids) for e in self._live if scope_of(e.request) == scope), default=0
        )
        finished, findable = self._computed.lcp(ids, scope), self._findable.lcp(ids, scope)
        lcp = max(running, finished)
        return [
            (Cause.NOVEL, max(lcp, self._computed.lcp_elsewhere(ids, scope))),
            (Cause.NAMESPACE, lcp),
            (Cause.LAST_TOKEN, request.prompt_len - 1),
            (Cause.IN_FLIGHT if running > max(finished, findable) else unpublished, findable),
        ]

    def clear(self) -> None:
        """Forget everything."""
        assert not self._live, "reset while requests hold blocks"
        self._computed.clear()
        self._findable.clear()
