"""Options that may lift a constraint, per system, with their cost in words. Only what lengthens the hit is shown.

Sources: the engines' own documentation of these options and the rules of their laws (reference_engine/laws).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.explain.counterfactual import World, known_options
from reference_engine.laws.registry import LAWS
from vocabulary.groups import Kind, parse_groups

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """A change to try, what it is in words, and what it costs."""

    option: str
    change: str
    cost: str
    given: Options = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    law_id: str | None = None
    joins: bool = True
    """Whether it is tried together with others: one value of each option, no other release."""

    def on(self, options: Mapping[str, Any]) -> Options:
        """The options with the change."""
        return {key: value for key, value in options.items() if key not in self.dropped} | self.given


@dataclass(frozen=True, slots=True)
class Lever:
    """A change that lengthens the hit of one request."""

    change: str
    cost: str
    hit_len: int
    """With the change, in tokens."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of a system and values worth a try; `None` takes the option away."""

    option: str
    values: tuple[Any, ...]
    cost: str
    also: tuple[str, ...] = ()
    """Options that vanish together with it."""


VLLM: tuple[Setting, ...] = (
    Setting("enable_prefix_caching", (True,), "memory is kept for prompts that may come again"),
    Setting("num_speculative_tokens", (None,), "no drafts: slower decoding", also=("method",)),
    Setting(
        "disable_eagle_block_drop",
        (True,),
        "the drafter starts on KV computed for another next token: fewer drafts accepted",
    ),
    Setting("prefix_match_unit", (16, 32, 64, 128), "one more prefill step per prompt, and more keys"),
    Setting(
        "prefix_cache_retention_interval", (None,), "every window and state boundary stays in the pool until evicted"
    ),
    Setting("max_num_batched_tokens", (), "shorter prefill steps: more of them, and more states in the pool"),
    Setting("num_gpu_blocks_override", (None,), "more memory for the pool"),
)
SGLANG: tuple[Setting, ...] = (
    Setting("disable_radix_cache", (None,), "memory is kept for prompts that may come again"),
    Setting("page_size", (1, 16), "smaller pages: more index entries, and some attention backends need larger ones"),
    Setting("speculative_algorithm", (None,), "no drafts: slower decoding"),
    Setting("mamba_radix_cache_strategy", ("extra_buffer",), "two more states per running request"),
    Setting("chunked_prefill_size", (8192, 4096, 2048, 1024, 512), "shorter prefill steps: more of them"),
    Setting("mamba_track_interval", (64, 128), "states are copied more often while decoding"),
    Setting("max_mamba_cache_size", (None,), "more memory for states"),
    Setting("max_total_tokens", (None,), "more memory for the pool"),
)
LLAMA_CPP: tuple[Setting, ...] = (
    Setting(
        "n_parallel", (1, 2, 4, 8), "the context is divided among the slots, or one conversation displaces another"
    ),
    Setting("slot_prompt_similarity", (0.01,), "prompts that share little take over one another's slots"),
    Setting("cache_ram_mib", (8192,), "host memory, and copying states in and out"),
    Setting("n_ctx_checkpoints", (32,), "host memory per checkpoint"),
    Setting("checkpoint_min_step", (64, 256), "more checkpoints: host memory, and time to take them"),
    Setting("n_ubatch", (64, 128, 256), "smaller forwards: slower prefill"),
    Setting("swa_full", (True,), "window layers keep every position: memory as for full attention"),
    Setting("n_cache_reuse", (32, 256), "moved chunks were computed behind another prefix: the output changes"),
    Setting("n_ctx_slot", (None,), "more memory for the context"),
)
TENSORRT_LLM: tuple[Setting, ...] = (
    Setting("enable_partial_reuse", (True,), "a block is copied, or taken from the tree, per request"),
    Setting("copy_on_partial_reuse", (True,), "a block is copied per request"),
    Setting("tokens_per_block", (32, 64), "smaller blocks: more of them"),
)
SYSTEMS: dict[str, tuple[Setting, ...]] = {
    "vllm": VLLM,
    "vllm-ascend": VLLM,
    "sglang": SGLANG,
    "llama.cpp": LLAMA_CPP,
    "llama-cpp-python": (
        Setting("swa_full", (True,), "window layers keep every position: memory as for full attention"),
    ),
    "tensorrt-llm": TENSORRT_LLM,
}
NULL_MEANS_SOMETHING = frozenset({"prefix_cache_retention_interval"})
"""Options whose null is a value and not their absence."""
MOST_TOGETHER = 3
SMALLER_BLOCK = "more blocks and keys; on a hybrid model the block follows from the state's size (hitparity blocksize)"
OTHER_RELEASE = "another release"


def levers(world: World, hit_len: int) -> list[Lever]:
    """Changes after which the last request of `world` hits more than `hit_len`, and holds it; the best of each option.

    Where no single change does, two and then three options together are tried.
    """
    trials = list(trials_of(world))
    for together in range(1, MOST_TOGETHER + 1):
        best: dict[tuple[str, ...], Lever] = {}
        for group in itertools.combinations(trials, together):
            names = tuple(trial.option for trial in group)
            if len(set(names)) < together or (together > 1 and any(not trial.joins for trial in group)):
                continue
            gained = _gained(world, group)
            known = best.get(names)
            if gained > (hit_len if known is None else known.hit_len):
                costs = dict.fromkeys(trial.cost for trial in group)
                best[names] = Lever(" and ".join(trial.change for trial in group), "; ".join(costs), gained)
        if best:
            return sorted(best.values(), key=lambda lever: -lever.hit_len)
    return []


def _gained(world: World, trials: Sequence[Trial]) -> int:
    """Tokens hit and held with all these changes; 0 where the law refuses them."""
    options: Mapping[str, Any] = world.options
    for trial in trials:
        options = trial.on(options)
    expectation = world.under(options, trials[0].law_id).last()
    if expectation is None:
        return 0
    backed = expectation.backed_len
    return expectation.hit_len if backed is None else min(expectation.hit_len, backed)


def trials_of(world: World) -> Iterator[Trial]:
    """Every change that is worth a try in this configuration, whether it helps or not."""
    system = world.law_id.partition("@")[0]
    current, readable = dict(world.options), set(known_options(world.law_id))
    for setting in SYSTEMS.get(system, ()):
        if setting.option not in readable:
            continue
        for number, value in enumerate(_values(setting, world)):
            if current.get(setting.option, ...) == value:
                continue
            if value is not None or setting.option in NULL_MEANS_SOMETHING:
                change, given = f"{setting.option} = {json.dumps(value)}", {setting.option: value}
                yield Trial(setting.option, change, setting.cost, given, setting.also, joins=not number)
            elif setting.option in current:
                change = f"without {setting.option} = {json.dumps(current[setting.option])}"
                yield Trial(setting.option, change, setting.cost, {}, (setting.option, *setting.also))
    if system.startswith("vllm"):
        yield from _smaller_blocks(current)
    for law_id in LAWS:
        if law_id != world.law_id and law_id.partition("@")[0] == system:
            yield Trial(law_id, law_id, OTHER_RELEASE, law_id=law_id, joins=False)


def _values(setting: Setting, world: World) -> tuple[Any, ...]:
    """Values to try; those that depend on the block are made here."""
    blocks = [group.block for group in parse_groups(world.options.get("groups", ("full",))) if group.block]
    largest = max(blocks, default=0)
    if setting.option == "max_num_batched_tokens":
        return tuple(largest * times for times in (1, 2, 4)) if largest else ()
    if setting.option == "prefix_match_unit":
        return tuple(value for value in setting.values if value < largest and all(b % value == 0 for b in blocks))
    return setting.values


def _smaller_blocks(options: Options) -> Iterator[Trial]:
    groups = parse_groups(options.get("groups", ("full",)))
    sizes = {group.block for group in groups if group.block}
    for divisor in (2, 4, 8, 16):
        if not sizes or any(size % (16 * divisor) for size in sizes):
            return
        smaller = [str(replace(group, block=(group.block or 0) // divisor)) for group in groups]
        yield Trial("groups", f"groups {','.join(smaller)}", SMALLER_BLOCK, {"groups": smaller}, joins=False)


GROUP_WORDS: dict[Kind, Callable[[int | None], str]] = {
    Kind.FULL: lambda _: "full attention",
    Kind.SWA: lambda window: f"the window of {window}",
    Kind.GDN: lambda _: "the recurrent state",
}


def group_words(texts: Mapping[str, int]) -> dict[str, str]:
    """Name of each group in a sentence, numbered where two would have one name."""
    names: dict[str, str] = {}
    for text in texts:
        group = parse_groups([text.partition("#")[0]])[0]
        name = GROUP_WORDS[group.kind](group.window)
        names[text] = f"{name} ({text})" if name in names.values() else name
    return names
