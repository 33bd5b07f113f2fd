"""What differs between the releases of vLLM and vLLM-Ascend, as data.

Each field says in which release the behaviour came in. Sources: the releases' own v1/core (kv_cache_manager,
kv_cache_coordinator, single_type_kv_cache_manager, block_pool, kv_cache_utils, sched/scheduler), read, and executed
against these laws by the differential tests; vLLM-Ascend: patch/platform of the releases named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class EagleGroups(StrEnum):
    """Which layer groups give back a unit when an EAGLE-like drafter runs."""

    ALL = "all"
    """None can be told apart, so all of them (0.23 to 0.30)."""
    TRAILING_MTP = "trailing-mtp"
    """The group of the last layer for method `mtp`, else all (0.32)."""
    DRAFT = "draft"
    """The group that holds the draft layers (0.33); vLLM-Ascend from 0.29.0rc1: full attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """One release's rule. The defaults are those of vLLM 0.23.0."""

    law_id: str
    # look-up
    mamba_margin: bool = True
    """Recurrent groups may look one unit past the candidate as EAGLE groups do: unbacked hits. Gone in 0.26.0."""
    fine_grained: bool = False
    """Hits inside a block, at `prefix_match_unit` (0.26.0)."""
    full_keeps_first: bool = False
    """Later rounds trim to full attention's first result instead of only flooring to its block (0.26.0)."""
    junctions: bool = False
    """A request remembers how far one group alone would have reached, and stops there (0.26.0)."""
    bound_by_hashed: bool = False
    """An EAGLE group may look past L-1, as far as there are keys (0.32.0)."""
    drop_can_be_disabled: bool = False
    """`disable_eagle_block_drop` (0.30.0)."""
    standalone_keeps: bool = False
    """A hybrid without a KV connector drops nothing; full attention still publishes for it (vLLM-Ascend 0.29.0rc1)."""
    fine_beside_windows: bool = False
    """Hits inside a block although a sliding window cannot follow them there (vLLM-Ascend 0.30.0rc2)."""
    lookahead_keys: bool = False
    """A block's key covers the next token and nothing is dropped (0.33.0)."""
    eagle_groups: EagleGroups = EagleGroups.ALL
    # what is kept
    retention_default: int | None = None
    """`prefix_cache_retention_interval`: environment variable until 0.26, option with default 0 from 0.30.0."""
    hybrids_ignore_retention: bool = False
    """Hybrids read the environment variable that this release no longer has (vLLM-Ascend 0.30.0rc2)."""
    retains_states: bool = False
    """Retention thins recurrent states too, not only windows (0.26.0)."""
    replay_below_drop: bool = False
    """With a drop, the boundaries kept for a repeat lie one block lower (0.30.0)."""
    mask_at_hit_alignment: bool = False
    """Kept boundaries are floored to the hit alignment, before to the scheduler's block (0.30.0)."""
    keeps_below_junction: bool = False
    """An EAGLE group also keeps the block below a junction (0.33.0)."""
    tail_below_last_token: bool = False
    """A repeat's checkpoint lies at or below L-1, before at or below L (0.32.0)."""
    tail_at_checkpoint: bool = False
    """The state at the prompt's checkpoint is kept whatever retention says (0.32.0)."""
    publishes_with_output: bool = False
    """With a drafter, blocks are also published when a token arrives: their keys may have waited for it (0.33.0)."""
    # steps
    stops_between: bool = False
    """Chunks also stop at block boundaries after a mid-block start, at the prompt's tail and at junctions (0.26.0)."""
    aligns_whole_prefill: bool = False
    """Every chunk but the last ends on a block, before only those below the last cacheable block (0.30.0)."""
    pads_drafts: bool = False
    """A prompt with one token left is scheduled with placeholder drafts (0.30.0)."""
    # blocks
    sorts_freed: bool = False
    """Blocks without a key are always handed out first; 0.23.0 does so only for windows and skipped blocks."""
    keeps_draft_states: bool = True
    """States of the last `num_speculative_tokens` positions are not retired yet. Gone in 0.26.0."""
    retires_past_gaps: bool = False
    """Retiring states does not stop at the first gap (0.30.0)."""
    marks_allocated_early: bool = False
    """A request counts as allocated even when its first step needed no state block (0.30.0)."""
    caps_state_need: bool = False
    """The state blocks counted before a step are capped, before they were set to the maximum (0.32.0)."""
    counts_external: bool = False
    """The free-block check counts one state block more for any prefix beyond the local hit (vLLM-Ascend)."""
    # names
    lora_path: bool = False
    """The adapter's path is part of the key, before its name only (0.32.0)."""

    @property
    def options(self) -> tuple[str, ...]:
        """Engine options this release knows and the law reads."""
        known = [
            "block_size", "enable_prefix_caching", "num_blocks", "num_gpu_blocks_override", "max_num_batched_tokens",
            "max_model_len", "max_num_seqs", "mamba_cache_mode", "prefix_cache_retention_interval", "method",
            "num_speculative_tokens",
        ]  # fmt: skip
        known += ["prefix_match_unit"] * self.fine_grained
        known += ["disable_eagle_block_drop"] * self.drop_can_be_disabled
        known += ["disable_lookahead_block_hashes"] * self.lookahead_keys
        return tuple(known)


V23 = Switches(law_id="vllm@0.23")
V26 = replace(
    V23,
    law_id="vllm@0.26",
    mamba_margin=False,
    fine_grained=True,
    full_keeps_first=True,
    junctions=True,
    retains_states=True,
    stops_between=True,
    sorts_freed=True,
    keeps_draft_states=False,
)
V30 = replace(
    V26,
    law_id="vllm@0.30",
    drop_can_be_disabled=True,
    retention_default=0,
    replay_below_drop=True,
    mask_at_hit_alignment=True,
    aligns_whole_prefill=True,
    pads_drafts=True,
    retires_past_gaps=True,
    marks_allocated_early=True,
)
V32 = replace(
    V30,
    law_id="vllm@0.32",
    bound_by_hashed=True,
    eagle_groups=EagleGroups.TRAILING_MTP,
    tail_below_last_token=True,
    tail_at_checkpoint=True,
    caps_state_need=True,
    lora_path=True,
)
V33 = replace(
    V32,
    law_id="vllm@0.33",
    lookahead_keys=True,
    eagle_groups=EagleGroups.DRAFT,
    keeps_below_junction=True,
    publishes_with_output=True,
)

ASCEND23 = replace(V23, law_id="vllm-ascend@0.23", mamba_margin=False, counts_external=True)
"""0.23.0rc1, 0.23.0 and .post1: the recurrent margin is repaired (PR 12038)."""
ASCEND26 = replace(V26, law_id="vllm-ascend@0.26", counts_external=True)
"""0.26.0rc1."""
ASCEND30 = replace(
    V30,
    law_id="vllm-ascend@0.30",
    standalone_keeps=True,
    fine_beside_windows=True,
    hybrids_ignore_retention=True,
    counts_external=True,
)
"""0.30.0rc1 and rc2."""

VLLM = (V23, V26, V30, V32, V33)
ASCEND = (ASCEND23, ASCEND26, ASCEND30)
