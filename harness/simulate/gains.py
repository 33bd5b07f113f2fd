"""What one changed option would save: jobs that differ from another in one thing.

Settings and their costs are those of `hitparity explain` (harness/explain/levers.py), which tries them on one request;
here each is tried on a whole trace. Added are the sizes a trace can answer for: blocks, pool, a drafter put on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from harness.explain.counterfactual import World, known_options
from harness.explain.levers import Trial, trials_of
from harness.simulate.job import Job
from reference_engine.laws.registry import make_law
from vocabulary.errors import LawDoesNotCover, UsageError
from vocabulary.groups import Kind, parse_groups

POOLS = ("num_blocks", "num_gpu_blocks_override", "max_total_tokens", "max_mamba_cache_size", "n_ctx_slot", "n_ctx")
"""Options that bound a pool, by system."""
MEMORY = "twice the memory for it"
DRAFTER: dict[str, dict[str, Any]] = {
    "vllm": {"method": "mtp", "num_speculative_tokens": 1},
    "vllm-ascend": {"method": "mtp", "num_speculative_tokens": 1},
    "sglang": {"speculative_algorithm": "EAGLE"},
}
"""An MTP or EAGLE drafter, by system."""
BLOCKS = {"vllm": "block_size", "vllm-ascend": "block_size", "sglang": "page_size"}
SIZES = (1, 8, 16, 32, 64, 128)
SMALLEST = {"vllm": 8, "vllm-ascend": 8, "sglang": 1}
STATES, WINDOWS = frozenset({Kind.GDN}), frozenset({Kind.SWA})
NEEDS: dict[str, frozenset[Kind]] = {
    "mamba_radix_cache_strategy": STATES,
    "mamba_track_interval": STATES,
    "max_mamba_cache_size": STATES,
    "prefix_cache_retention_interval": STATES | WINDOWS,
    "prefix_match_unit": STATES | WINDOWS,
    "n_ctx_checkpoints": STATES | WINDOWS,
    "checkpoint_min_step": STATES | WINDOWS,
    "n_ubatch": STATES | WINDOWS,
    "swa_full": WINDOWS,
}
"""Options that only these kinds of layers read."""
POOL_UNITS = ("num_blocks", "num_gpu_blocks_override")
"""Pools counted in blocks: another block size keeps their tokens."""


def variants(job: Job) -> list[Job]:
    """Jobs with one thing changed, for all changes the law has a rule for."""
    found: dict[str, Job] = {}
    for trial in (
        *_sizes(job),
        *_pools(job),
        *_drafter(job),
        *trials_of(World(law_id=job.law, options=job.options, sent=())),
    ):
        if trial.law_id is not None or not _matters(trial.option, job):
            continue  # another release is another --law
        made = replace(job, options=trial.on(job.options), change=trial.change, cost=trial.cost, base=job.cell)
        if made.cell == job.cell or made.cell in found:
            continue
        try:
            make_law(made.law, made.options)
        except (LawDoesNotCover, UsageError):
            continue
        found[made.cell] = made
    return list(found.values())


def _matters(option: str, job: Job) -> bool:
    """Whether an option can change anything with these layers; what is left out would be tried for nothing."""
    kinds = {group.kind for group in parse_groups(job.options.get("groups", ("full",)))}
    if option in NEEDS:
        return bool(NEEDS[option] & kinds)
    if option == "disable_eagle_block_drop":
        return "num_speculative_tokens" in job.options
    if option in ("enable_prefix_caching", "disable_radix_cache"):
        return option in job.options
    return True


def _sizes(job: Job) -> Iterator[Trial]:
    system, options = job.law.partition("@")[0], job.options
    key = BLOCKS.get(system)
    if key is None or any(":" in group for group in options.get("groups", ())):
        return
    now = options.get(key, 1 if system == "sglang" else 16)
    for size in SIZES:
        if size != now and size >= SMALLEST[system]:
            kept = {name: options[name] * now // size for name in POOL_UNITS if isinstance(options.get(name), int)}
            cost = "more, smaller blocks: more index entries, slower lookups" if size < now else "none"
            yield Trial(key, f"{key} = {size}", cost, {key: size, **kept})


def _pools(job: Job) -> Iterator[Trial]:
    for key in POOLS:
        value = job.options.get(key)
        if isinstance(value, int):
            yield Trial(key, f"{key} = {2 * value}", MEMORY, {key: 2 * value})


def _drafter(job: Job) -> Iterator[Trial]:
    given: Mapping[str, Any] = DRAFTER.get(job.law.partition("@")[0], {})
    if given and set(given) <= set(known_options(job.law)) and not set(given) & set(job.options):
        yield Trial("drafter", "with an MTP drafter", "none here: what it loses is shown", dict(given))
