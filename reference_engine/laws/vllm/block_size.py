"""Block size of a hybrid with recurrent layers: how many tokens of keys and values fill the page of one state.

One page size serves all groups, so the attention block grows until its page holds a state, and the state's page is
padded to it. Sources: vLLM 0.23.0, 0.26.0, 0.30.0, 0.32.0 and 0.33.0, platforms/interface.py
(_align_hybrid_block_size); vLLM-Ascend 0.23.0 and 0.26.0rc1, patch/platform/patch_mamba_config.py. vLLM-Ascend
0.30.0rc1 dropped its own rule: it takes the mainline one with kernel blocks of 128.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from vocabulary.errors import LawDoesNotCover, UsageError


class Rule(StrEnum):
    """Which formula a release uses."""

    KEYS_AND_VALUES = "keys-and-values"
    """Mainline: the whole state over keys and values."""
    KEYS_ONLY = "keys-only"
    """vLLM-Ascend through 0.29.0rc1: the recurrent part over keys alone, which must come out exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    rule: Rule = Rule.KEYS_AND_VALUES
    kernel_block: int | None = None
    """Fixed by the release; None: the attention backend's."""
    mla_block: int | None = None
    """Smallest block with MLA (0.30.0)."""
    all_backends: bool = False
    """The block is then rounded up to a multiple of every attention backend's kernel block (0.32.0)."""
    checkpoints: bool = False
    """The alignment is also a multiple of the internal prefill checkpoint's (0.33.0)."""


RELEASES: dict[str, _Release] = {
    "vllm@0.23": _Release(),
    "vllm@0.26": _Release(),
    "vllm@0.30": _Release(mla_block=128),
    "vllm@0.32": _Release(mla_block=128, all_backends=True),
    "vllm@0.33": _Release(mla_block=128, all_backends=True, checkpoints=True),
    "vllm-ascend@0.23": _Release(rule=Rule.KEYS_ONLY, kernel_block=128),
    "vllm-ascend@0.26": _Release(rule=Rule.KEYS_ONLY, kernel_block=128),
    "vllm-ascend@0.30": _Release(kernel_block=128, mla_block=128),
}
"""By law id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridBytes:
    """What one layer keeps on one rank, in bytes."""

    k_per_token: int
    kv_per_token: int
    recurrent: int
    """The recurrent state."""
    conv: int
    """The convolution's state."""

    @property
    def state(self) -> int:
        """Both together."""
        return self.recurrent + self.conv


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridShape:
    """A model's attention and recurrent layers, as its configuration file gives them."""

    kv_heads: int
    head_dim: int
    kv_dtype_bytes: int
    recurrent_heads: int
    """Value heads of the recurrent layer."""
    recurrent_head_dims: tuple[int, int]
    recurrent_dtype_bytes: int
    conv_bytes_per_rank: int
    tp: int = 1
    """Ranks of tensor parallelism; heads are divided among them, at least one each."""

    def bytes_per_rank(self) -> HybridBytes:
        """Sizes on one rank; UsageError where the recurrent heads do not divide."""
        if self.recurrent_heads % self.tp:
            raise UsageError(f"{self.recurrent_heads} recurrent heads cannot be divided among {self.tp} ranks")
        k = max(1, self.kv_heads // self.tp) * self.head_dim * self.kv_dtype_bytes
        recurrent = self.recurrent_heads // self.tp * math.prod(self.recurrent_head_dims) * self.recurrent_dtype_bytes
        return HybridBytes(k_per_token=k, kv_per_token=2 * k, recurrent=recurrent, conv=self.conv_bytes_per_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridBlock:
    """The outcome."""

    block_size: int
    """Tokens per attention block and per recurrent state."""
    page_bytes: int
    """One attention block of one layer."""
    state_page_bytes: int
    """One state with its padding."""
    tokens_needed: int
    """Tokens that would just hold the state, before rounding."""
    alignment: int
    """Tokens the block is rounded up to a multiple of."""
    padding: float
    """Share of padding as the engine logs it: of the state, with the keys-only rule of the padded page."""
    rule: Rule
    formula: str
    """The arithmetic with its numbers."""


def hybrid_block_size(
    law_id: str,
    sizes: HybridBytes,
    *,
    kernel_block: int = 16,
    configured: int | None = None,
    mla: bool = False,
    backends_alignment: int = 1,
    checkpoint_alignment: int = 1,
) -> HybridBlock:
    """Block size that a release (law id such as "vllm@0.30") gives a hybrid model.

    `kernel_block`: smallest block of the attention backend in tokens (16 on most GPUs, 128 where the backend asks for
    it); vLLM-Ascend fixes 128. `configured`: block_size as set by the user. `backends_alignment`: least common multiple
    of all attention backends' smallest kernel blocks (read from 0.32 on). `checkpoint_alignment`: tokens between
    internal prefill checkpoints (read from 0.33 on). Raises UsageError for an unknown release and LawDoesNotCover
    where the engine stops.
    """
    release = RELEASES.get(law_id)
    if release is None:
        raise UsageError(f"no block-size rule for {law_id!r}; there are: {', '.join(RELEASES)}")
    if release.rule is Rule.KEYS_ONLY:
        return _keys_only(law_id, sizes, configured)
    alignment = max(filter(None, (release.kernel_block or kernel_block, configured, mla and release.mla_block)))
    if release.checkpoints:
        alignment = math.lcm(alignment, checkpoint_alignment)
    needed = -(-sizes.state // sizes.kv_per_token)
    block = -(-sizes.state // (alignment * sizes.kv_per_token)) * alignment
    if release.all_backends:
        block = -(-block // backends_alignment) * backends_alignment
    page = block * sizes.kv_per_token
    return HybridBlock(
        block_size=block,
        page_bytes=page,
        state_page_bytes=page,
        tokens_needed=needed,
        alignment=alignment,
        padding=(page - sizes.state) / sizes.state,
        rule=release.rule,
        formula=(
            f"(recurrent {sizes.recurrent:,} + conv {sizes.conv:,}) B / (K+V {sizes.kv_per_token:,} B per token) "
            f"= {needed:,} tokens, rounded up to a multiple of {alignment}: {block:,}"
        ),
    )


def _keys_only(law_id: str, sizes: HybridBytes, configured: int | None) -> HybridBlock:
    alignment = 128
    needed = -(-sizes.recurrent // sizes.k_per_token)
    block = -(-sizes.recurrent // (alignment * sizes.k_per_token)) * alignment
    if block * sizes.k_per_token != sizes.recurrent:
        raise LawDoesNotCover(
            f"{law_id} stops: {block} tokens of keys are {block * sizes.k_per_token:,} B, not exactly the recurrent "
            f"state of {sizes.recurrent:,} B"
        )
    block = max(filter(None, (block, configured)))
    page = block * sizes.kv_per_token
    return HybridBlock(
        block_size=block,
        page_bytes=page,
        state_page_bytes=page + sizes.conv,
        tokens_needed=needed,
        alignment=alignment,
        padding=sizes.conv / (page + sizes.conv),
        rule=Rule.KEYS_ONLY,
        formula=(
            f"recurrent {sizes.recurrent:,} B / (K {sizes.k_per_token:,} B per token) = {needed:,} tokens, rounded up "
            f"to a multiple of {alignment}: {block:,}; the conv state ({sizes.conv:,} B) is added to the page"
        ),
    )
