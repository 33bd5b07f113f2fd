"""What goes to an engine, what comes back, and what the engine says about itself.

Times are `time.monotonic_ns()` readings, one clock for all processes of a machine (Linux).
`None` always means that the engine did not say; it is never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Span = tuple[int, int]
"""A half-open interval of token positions, `[start, end)`."""


class Mode(StrEnum):
    """How hitparity reaches an engine."""

    LAUNCH = "launch"
    """Start the engine's own server and speak its protocol."""
    WORKER = "worker"
    """Run the engine in process inside a stand-alone worker script, JSON lines over a pipe."""
    ATTACH = "attach"
    """Speak to a server the user runs, by URL."""


class Fidelity(StrEnum):
    """What stands behind an answer; every record names it."""

    LAW = "law"
    """Our statement of the engine's rule; no engine ran."""
    LOOKUP = "lookup"
    """The engine's own cache and scheduler code, without a model forward."""
    SERVED = "served"
    """The engine ran the model."""


class Feature(StrEnum):
    """Request features that matter to a prefix cache."""

    LOGPROB = "logprob"
    """Report the log-probability of the first generated token; leaves the lookup alone."""
    LOGITS = "logits"
    """Hand over all logits behind the first generated token, as `Reply.native["logits"]`; only llama-cpp-python can."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """Log-probabilities of the prompt; engines turn the lookup (partly) off for it."""
    SKIP_LOOKUP = "skip_lookup"
    """Compute everything and still publish it (vLLM's `skip_reading_prefix_cache`); only laws and lookups read it."""


@dataclass(frozen=True, slots=True)
class Media:
    """An image or another item in a prompt: the IDs of `length` positions from `start` on stand for its embeddings."""

    identifier: str
    """Equal ones, equal content, and so equally many positions."""
    start: int
    length: int

    @property
    def stand_in(self) -> int:
        """A negative number, the same for the same item at the same place; over an ID, one that no token has."""
        import hashlib  # takes longer than the rest of this module, and few requests have items

        digest = hashlib.sha256(f"{self.start} {self.identifier}".encode()).digest()
        return -1 - (int.from_bytes(digest[:4], "little") >> 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """One prompt as token IDs, decoded greedily for exactly `max_tokens` tokens (end-of-text ignored)."""

    request_id: str
    ids: tuple[int, ...]
    max_tokens: int = 1
    namespace: str | None = None
    """Cache salt; requests of different namespaces must never share."""
    features: frozenset[Feature] = frozenset()
    lora: str | None = None
    """Adapter as "name" or "name@path"; only laws and lookups read it."""
    media: tuple[Media, ...] = ()
    """Items at some of the positions, in order and apart; only laws and lookups that say `can_media` read them."""
    external_hit: int | None = None
    """Tokens that an external store injects (DeepInfer); only laws read it."""
    fork_of: str | None = None
    """`request_id` of the live sequence this one branches from (DeepInfer); only laws read it."""

    not_before_ns: int | None = field(default=None, compare=False)
    """`time.monotonic_ns()` before which it must not be sent; only served engines over HTTP wait."""

    _array: npt.NDArray[np.int32] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """ValueError for items that are empty, overlap, are out of order or leave the prompt's IDs."""
        free = 0
        for item in self.media:
            if item.length < 1 or not free <= item.start <= len(self.ids) - item.length:
                raise ValueError(f"request {self.request_id}: {item} is not within [{free}, {len(self.ids)})")
            free = item.start + item.length

    @property
    def prompt_len(self) -> int:
        """Tokens in the prompt."""
        return len(self.ids)

    @property
    def space(self) -> str | None:
        """What separates equal prompts: salt and adapter; None: neither."""
        return self.namespace if self.lora is None else repr((self.namespace, self.lora))

    def computed(self, output_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        """All that has KV after this answer: the prompt and all generated IDs but the last."""
        import numpy as np

        return np.concatenate([self.array, np.asarray(output_ids[:-1], np.int32)])

    @property
    def array(self) -> npt.NDArray[np.int32]:
        """`ids` as an array, read-only, with each item's own ID at its positions; made once, since all compare it."""
        if self._array is None:
            import numpy as np  # workers of other engines read this module in environments of their own

            made = np.fromiter(self.ids, np.int32, len(self.ids))
            for item in self.media:
                made[item.start : item.start + item.length] ^= item.stand_in  # keys hold the IDs there too
            made.flags.writeable = False
            object.__setattr__(self, "_array", made)
        assert self._array is not None
        return self._array


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an engine reported for one request, and how it was read."""

    request_id: str
    prompt_len: int
    """Prompt tokens by the engine's own count."""
    hit_len: int | None
    """Tokens the engine says it took from its cache."""
    hit_source: str
    """The field or counter `hit_len` was read from."""
    position_start: int | None
    """Absolute position of the first token the model computed."""
    position_source: str
    """Where `position_start` was observed; "none" where the engine shows it nowhere."""
    output_ids: tuple[int, ...]
    first_logprob: float | None
    """Natural-log probability of `output_ids[0]`."""
    sent_ns: int
    first_token_ns: int | None
    done_ns: int
    steps: tuple[Span, ...] | None
    """Prefill steps in order, as spans of prompt positions."""
    backed_len: int | None = None
    """Tokens below which every layer group holds what the hit claims, where the engine's own cache shows it."""
    native: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own fields worth keeping, JSON values only."""

    @property
    def ttft_ns(self) -> int | None:
        """Request sent to first generated token received."""
        return None if self.first_token_ns is None else self.first_token_ns - self.sent_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a started engine says about itself; read back from it, not copied from the request."""

    engine: str
    version: str
    mode: Mode | None
    """None: no engine runs (fidelity `law`)."""
    device: str
    dtype: str
    granule: int
    """Smallest reusable step in tokens: block, page or 1."""
    groups: tuple[str, ...]
    """Kinds of layer groups, such as ("full",) or ("full", "swa:128")."""
    context_len: int
    """Longest prompt plus output in tokens."""
    vocab_size: int
    caps_last_token: bool = True
    """True where at least one prompt position is always computed."""
    law: str | None = None
    """Law id that covers this engine as configured, e.g. "vllm@0.32"; None: no law covers it."""
    law_options: Mapping[str, Any] = field(default_factory=dict)
    """The resolved options that law reads."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Resolved options as the engine reports them, JSON values only."""
    fidelity: Fidelity = Fidelity.SERVED
    emulated: bool = False
    """True for the reference engine running another system's law."""
    can_salt: bool = False
    """True where `TokenRequest.namespace` separates caches."""
    can_media: bool = False
    """True where `TokenRequest.media` is read."""
    notes: tuple[str, ...] = ()
    """Limits worth a line in every report (no law for these groups, bf16 computed in fp32, ...)."""


class Engine(Protocol):
    """A started engine. Not thread-safe; close it exactly once (a context manager does)."""

    facts: EngineFacts

    def send(self, request: TokenRequest) -> Reply:
        """Send one request and wait. Raises RequestRefused, or EngineFailed when the engine is gone."""
        ...

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        """Send all at once; replies in the order of `requests`."""
        ...

    def reset(self) -> bool:
        """Ask the engine to forget its cache; False: it has no way to. The harness verifies by observing."""
        ...

    def close(self) -> None:
        """Stop what was started, politely and then by force; never raises."""
        ...
