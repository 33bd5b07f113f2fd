"""SGLang's options as its law reads them, and what the law refuses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reference_engine.laws.entry import flag, layer_groups, positive, share
from reference_engine.laws.entry import pages as pages_of
from vocabulary.errors import LawDoesNotCover
from vocabulary.groups import Kind, LayerGroup

VERSIONS = ("0.5.23",)
OPTIONS = (
    "page_size",
    "chunked_prefill_size",
    "max_total_tokens",
    "swa_full_tokens_ratio",
    "max_mamba_cache_size",
    "mamba_radix_cache_strategy",
    "mamba_track_interval",
    "mamba_max_states_per_path",
    "speculative_algorithm",
    "logprob_start_len",
    "disable_radix_cache",
    "num_pages",
)
"""`num_pages` is no option of SGLang: the pool of the reference engine, which reserves a whole prompt at admission."""
BIGRAM_ALGORITHMS = ("EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN")
"""Speculative algorithms whose tree keys are pairs of tokens; NEXTN is an alias of EAGLE."""
PLAIN_ALGORITHMS = ("NGRAM", "STANDALONE", "DFLASH")
STATE_CHUNK = 64
"""Tokens between the states that linear-attention kernels can keep, for models without a `mamba_chunk_size`."""
TRACK_INTERVAL = 256
"""Default of mamba_track_interval."""
SWA_RATIO = 0.8
"""Default of swa_full_tokens_ratio."""


@dataclass(frozen=True, kw_only=True)
class SglangConfig:
    """One configuration; lengths in tokens."""

    version: str
    groups: tuple[LayerGroup, ...]
    page: int
    chunk: int | None
    """Most prompt tokens per prefill step; None: no chunking."""
    window: int | None
    """Tokens before a boundary whose sliding-window KV a hit needs; None: no such layers."""
    strategy: str | None
    """"no_buffer" or "extra_buffer"; None: no recurrent layers."""
    track_interval: int
    states_per_path: int | None
    """Most states on one path of the tree; None: no limit."""
    bigram: bool
    """Whether the tree's keys are pairs of tokens."""
    logprob_start: int
    """Prompt position that log-probabilities of the prompt start at; caps the lookup."""
    enabled: bool
    pool_tokens: int | None
    window_pool_tokens: int | None
    state_slots: int | None
    eager: bool
    """Slots for the whole prompt at admission (reference engine) in place of SGLang's step by step."""

    @cached_property
    def state_chunk(self) -> int:
        """Distance of the states that a prefill step can read, counted from its start."""
        return max(STATE_CHUNK, self.page)

    @cached_property
    def state_grid(self) -> int:
        """Distance of the states that a prefill step can leave, counted from its start."""
        return math.lcm(self.state_chunk, self.page)

    @cached_property
    def track_grid(self) -> int:
        """Positions whose state is kept during decode are its multiples."""
        return math.lcm(self.state_grid, self.track_interval)

    @cached_property
    def plain(self) -> bool:
        """Full attention alone."""
        return self.window is None and self.strategy is None

    @cached_property
    def full_groups(self) -> dict[str, bool]:
        """By group, whether it is full attention."""
        return {str(group): group.kind is Kind.FULL for group in self.groups}

    @cached_property
    def tracks(self) -> bool:
        """Whether states are kept on a grid in a buffer of their own (`extra_buffer`)."""
        return self.strategy == "extra_buffer"


def read(version: str, options: Mapping[str, Any], pool_tokens: int | None) -> SglangConfig:
    """The configuration; LawDoesNotCover names what the law has no rule for."""
    law_id = f"sglang@{version}"
    groups = layer_groups(options)
    kinds = [group.kind for group in groups]
    if kinds not in ([Kind.FULL], [Kind.FULL, Kind.SWA], [Kind.FULL, Kind.GDN]):
        raise LawDoesNotCover(
            f"{law_id}: no law for layer groups {', '.join(map(str, groups))}; "
            f"there are full, full with swa, full with gdn"
        )
    page = _page(law_id, groups, options)
    # A token attends to itself and window - 1 before it; SGLang's tree counts the latter.
    window = next((group.window - 1 for group in groups if group.window is not None), None)
    if window == 0:
        raise LawDoesNotCover(f"{law_id}: a sliding window of one token keeps nothing")
    hybrid = Kind.GDN in kinds
    own = pages_of(pool_tokens, page, options, "num_pages")
    limit = None if options.get("max_total_tokens") is None else positive(options, "max_total_tokens", 1)
    pages = own if own is not None or limit is None else limit // page
    ratio = share(options, "swa_full_tokens_ratio", SWA_RATIO)
    states = options.get("max_mamba_cache_size")
    return SglangConfig(
        version=version,
        groups=groups,
        page=page,
        chunk=_chunk(law_id, options, page, hybrid=hybrid),
        window=window,
        strategy=_strategy(law_id, options, page) if hybrid else None,
        track_interval=positive(options, "mamba_track_interval", TRACK_INTERVAL),
        states_per_path=_limit(options, "mamba_max_states_per_path"),
        bigram=_bigram(law_id, options) and not hybrid,
        logprob_start=_logprob_start(options),
        enabled=not flag(options, "disable_radix_cache", default=False),
        pool_tokens=None if pages is None else pages * page,
        window_pool_tokens=None if pages is None or window is None else int(pages * page * ratio) // page * page,
        state_slots=None if states is None or not hybrid else positive(options, "max_mamba_cache_size", 1),
        eager=own is not None,
    )


def _page(law_id: str, groups: tuple[LayerGroup, ...], options: Mapping[str, Any]) -> int:
    sizes = {group.block for group in groups if group.block is not None}
    if options.get("page_size") is not None:
        sizes.add(positive(options, "page_size", 1))
    if len(sizes) > 1:
        raise LawDoesNotCover(f"{law_id}: page sizes {sorted(sizes)}; SGLang has one page size for all layers")
    return sizes.pop() if sizes else 1


def _chunk(law_id: str, options: Mapping[str, Any], page: int, *, hybrid: bool) -> int | None:
    value = options.get("chunked_prefill_size")
    if value is None or value == -1:
        return None
    chunk = positive(options, "chunked_prefill_size", 1)
    if chunk < page or (hybrid and chunk % page):
        raise LawDoesNotCover(
            f"{law_id}: chunked_prefill_size = {chunk} with page_size = {page}: at least a page is needed, and whole "
            f"pages where states are kept"
        )
    return chunk


def _strategy(law_id: str, options: Mapping[str, Any], page: int) -> str:
    """SGLang's own choice without overlapped scheduling: `no_buffer` at page 1, else `extra_buffer`."""
    value = options.get("mamba_radix_cache_strategy") or "auto"
    if value == "auto":
        value = "no_buffer" if page == 1 else "extra_buffer"
    if value not in ("no_buffer", "extra_buffer"):
        raise LawDoesNotCover(f"{law_id}: mamba_radix_cache_strategy = {value!r}: no_buffer or extra_buffer")
    if value == "no_buffer" and page != 1:
        raise LawDoesNotCover(f"{law_id}: no_buffer needs page_size = 1, this is {page}")
    return str(value)


def _limit(options: Mapping[str, Any], key: str) -> int | None:
    value = options.get(key)
    return None if value is None or value == -1 else positive(options, key, 1)


def _bigram(law_id: str, options: Mapping[str, Any]) -> bool:
    algorithm = options.get("speculative_algorithm")
    if algorithm is None or algorithm in PLAIN_ALGORITHMS:
        return False
    if algorithm not in BIGRAM_ALGORITHMS:
        raise LawDoesNotCover(
            f"{law_id}: speculative_algorithm = {algorithm!r}: {', '.join((*BIGRAM_ALGORITHMS, *PLAIN_ALGORITHMS))}"
        )
    return True


def _logprob_start(options: Mapping[str, Any]) -> int:
    value = options.get("logprob_start_len", 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise LawDoesNotCover(f"logprob_start_len = {value!r}: a prompt position from 0 on is needed")
    return value
