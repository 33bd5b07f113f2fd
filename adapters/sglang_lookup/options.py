"""Options of a lookup, under SGLang's own names."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from adapters.base import Options
from adapters.lookup_engine import Groups
from vocabulary.errors import UsageError
from vocabulary.groups import parse_groups


class SglangLookupOptions(Options):
    """Only what is set reaches SGLang; defaults are the worker's (`inside/`) and SGLang's."""

    groups: Groups = ("full",)
    """Layer groups: full, full with swa, full with gdn; a block named here is the page size."""
    page_size: int | None = Field(default=None, ge=1)
    """None: what the groups name, else 1."""
    chunked_prefill_size: int | None = None
    """Most prompt tokens per prefill step; None, as -1: no chunking."""
    max_total_tokens: int | None = Field(default=None, ge=1)
    """Tokens in the KV pool; None: 1,048,576."""
    swa_full_tokens_ratio: float | None = Field(default=None, gt=0, le=1)
    max_mamba_cache_size: int | None = Field(default=None, ge=1)
    """Slots for recurrent states; None: 2,048."""
    mamba_radix_cache_strategy: str | None = None
    """"no_buffer" or "extra_buffer"; None: the former at page size 1, else the latter."""
    mamba_track_interval: int | None = Field(default=None, ge=1)
    mamba_max_states_per_path: int | None = None
    speculative_algorithm: str | None = None
    """EAGLE's keys in the tree; nothing is drafted."""
    logprob_start_len: int | None = Field(default=None, ge=0)
    """Where the log-probabilities of a prompt begin, for requests that ask for them."""
    disable_radix_cache: bool | None = None
    schedule_policy: str | None = None

    def given(self) -> dict[str, Any]:
        """What was set, with the page size in one place and the groups without it."""
        fields = {name: value for name, value in self.model_dump(exclude_unset=True).items() if value is not None}
        groups = parse_groups(self.groups)
        sizes = {group.block for group in groups if group.block is not None} | ({self.page_size} - {None})
        if len(sizes) > 1:
            raise UsageError(
                f"page sizes {', '.join(map(str, sorted(filter(None, sizes))))}: SGLang has one for all layers"
            )
        if sizes:
            fields["page_size"] = sizes.pop()
        return fields | {"groups": list(self.groups)}
