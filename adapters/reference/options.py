"""Options of the reference engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from adapters.base import Options


class ReferenceOptions(Options):
    """How to run the model; the law and its own options decide what is reused."""

    law_options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the law, by the names `hitparity list laws` gives; the pool's size is filled in from `pool_tokens`."""
    pool_tokens: PositiveInt = 16384
    """Slots of the KV pool, in tokens."""
    pool_states: PositiveInt = 64
    """Slots for recurrent states, where the law knows no limit of its own."""
    backend: Literal["fused", "torch", "triton", "npu"] = "fused"
    """Who computes attention and recurrent layers: torch's own operators, or the kernels of that name."""
    prefill_grid: PositiveInt = 256
    """Prefill calls end at absolute multiples of it: warm and cold logits are bit-equal for hits on this grid.

    256 was the fastest of 128, 256 and 512 for 1,038 cold tokens of SmolLM2 in fp32 on two AVX2 cores: larger calls
    multiply a little faster and attend to more masked keys.
    """
    max_num_batched_tokens: PositiveInt = 2048
    """Most tokens of one step, decodes included."""
    max_num_seqs: PositiveInt = 16
    """Most requests that run at once."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of matrix products, activations and KV; "auto": the weights', but float32 on a CPU that has no bf16."""
    num_speculative_tokens: NonNegativeInt = 0
    """Tokens that the model's MTP head drafts per step. Laws with an option of this name are told in `law_options`."""
    trace_hand_over: bool = False
    """Report block table, reference counts and slot mapping of each request's first call (`hitparity handover`)."""
    threads: PositiveInt | None = None
    """CPU threads; None: one per core that this process may use."""

    @model_validator(mode="after")
    def _oldest_prefill_advances(self) -> Self:
        if self.max_num_batched_tokens < self.prefill_grid + self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} must be at least prefill_grid + max_num_seqs "
                f"= {self.prefill_grid + self.max_num_seqs}: a step has to fit every decode and one prefill call"
            )
        return self
