"""Options of vLLM's and vLLM-Ascend's laws: what is taken and refused, and the numbers that follow from them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from refusing import refuses
from vllm_asking import VERSIONS, P, ask

from reference_engine.laws.registry import make_law
from reference_engine.laws.vllm.block_size import RELEASES, HybridBytes, HybridShape, hybrid_block_size
from reference_engine.laws.vllm.law import VllmLaw
from reference_engine.laws.vllm.plan import Plan
from reference_engine.laws.vllm.steps import decode_step, prefill_step
from reference_engine.laws.vllm.switches import ASCEND, VLLM, EagleGroups, Switches
from vocabulary.engine import TokenRequest
from vocabulary.errors import LawDoesNotCover

IDS = [switches.law_id for switches in (*VLLM, *ASCEND)]
MTP = {"num_speculative_tokens": 1, "method": "mtp"}
WINDOW, STATES = {"groups": ["full:16", "swa:16:64"]}, {"groups": ["full:16", "gdn:16"]}


def law_of(law_id: str, **options: Any) -> VllmLaw:
    law = make_law(law_id, options)
    assert isinstance(law, VllmLaw)
    return law


def plan_of(law_id: str, **options: Any) -> Plan:
    return law_of(law_id, **options).plan


# -- releases ----------------------------------------------------------------------------------------------------------

SINCE = {
    "0.26": "fine_grained full_keeps_first junctions retains_states stops_between sorts_freed",
    "0.30": "drop_can_be_disabled replay_below_drop mask_at_hit_alignment aligns_whole_prefill pads_drafts "
    "retires_past_gaps marks_allocated_early",
    "0.32": "bound_by_hashed tail_below_last_token tail_at_checkpoint caps_state_need lora_path",
    "0.33": "lookahead_keys keeps_below_junction publishes_with_output",
}
"""As the release notes and sources of each say, quoted beside the fields."""
ONLY_23 = {"mamba_margin", "keeps_draft_states"}
ASCEND_30 = {"standalone_keeps", "fine_beside_windows", "hybrids_ignore_retention"}


def on(switches: Switches) -> set[str]:
    return {field.name for field in fields(switches) if getattr(switches, field.name) is True}


def test_what_came_in_with_which_release() -> None:
    for switches in VLLM:
        version = switches.law_id.removeprefix("vllm@")
        since = {name for release, names in SINCE.items() if release <= version for name in names.split()}
        assert on(switches) == since | (ONLY_23 if version == "0.23" else set()), version
        assert switches.retention_default == (0 if version >= "0.30" else None)
    for ascend, mainline in zip(ASCEND, VLLM, strict=False):
        more = {"counts_external"} | (ASCEND_30 if ascend.law_id.endswith("0.30") else set())
        assert on(ascend) == on(mainline) - {"mamba_margin"} | more
    assert [switches.eagle_groups for switches in (*VLLM, *ASCEND)] == [
        *[EagleGroups.ALL] * 3, EagleGroups.TRAILING_MTP, EagleGroups.DRAFT, *[EagleGroups.ALL] * 3,
    ]  # fmt: skip


def eagle(version: str, groups: list[str], method: str) -> list[str]:
    plan = plan_of(f"vllm@{version}", groups=groups, method=method, num_speculative_tokens=1, **LEGACY[version])
    return [kind.text for kind in plan.kinds if kind.eagle]


LEGACY: dict[str, dict[str, Any]] = {version: {} for version in VERSIONS}
LEGACY["0.33"] = {"disable_lookahead_block_hashes": True}


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_that_give_a_unit_back(version: str) -> None:
    groups, first = ["swa:16:64", "full:16", "gdn:16"], ["full:16"]
    everyone = ["full:16", "swa:16:64", "gdn:16"]
    assert eagle(version, groups, "mtp") == (first if version >= "0.32" else everyone)
    for method in ("eagle", "eagle3"):
        assert eagle(version, groups, method) == (first if version >= "0.33" else everyone)
    assert eagle(version, ["swa:16:64", "gdn:16"], "mtp") == ["swa:16:64", "gdn:16"]
    assert eagle(version, ["full:16"], "ngram") == []
    if version >= "0.26":
        assert eagle(version, ["full:32", "full:16", "swa:16:64"], "mtp") == (
            ["full:32"] if version >= "0.32" else ["full:32", "full:16", "swa:16:64"]
        )


@pytest.mark.parametrize("law_id", IDS)
def test_drafters(law_id: str) -> None:
    """Drop, look-ahead of the keys, drafts, slots of the drafter and states of it."""

    def numbers(**options: Any) -> tuple[Any, ...]:
        plan = plan_of(law_id, **options)
        return plan.drop, plan.lookahead, plan.drafts, plan.draft_slots, plan.state_drafts

    new, late = law_id == "vllm@0.33", law_id in ("vllm@0.30", "vllm@0.32", "vllm@0.33", "vllm-ascend@0.30")
    assert numbers() == numbers(num_speculative_tokens=0, method="mtp") == (False, 0, 0, 0, 0)
    assert numbers(num_speculative_tokens=3) == (not new, int(new), 3, 3, 3)  # MTP where no method is named
    assert numbers(num_speculative_tokens=3, method="ngram") == (False, 0, 3, 0, 3)
    assert numbers(num_speculative_tokens=3, enable_prefix_caching=False) == (True, 0, 3, 3, 3)
    if late:
        assert numbers(num_speculative_tokens=3, disable_eagle_block_drop=True) == (False, 0, 3, 3, 3)
        assert numbers(num_speculative_tokens=3, disable_eagle_block_drop=False) == (not new, int(new), 3, 3, 3)
    if new:
        assert numbers(num_speculative_tokens=3, disable_lookahead_block_hashes=True) == (True, 0, 3, 3, 3)
    for groups in (["full:16", "gdn:16"], ["full:16", "swa:16:64", "gdn:16"]):
        kept = law_id == "vllm-ascend@0.30"
        assert numbers(**MTP, groups=groups) == (not new and not kept, int(new), 1, 1, 1)
        kinds = plan_of(law_id, **MTP, groups=groups).kinds
        assert [kind.ahead for kind in kinds] == [
            (kind.text == "full:16" if law_id == "vllm@0.32" or kept else True) and not new for kind in kinds
        ]


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law_id", IDS)
def test_whole_numbers_and_flags(law_id: str) -> None:
    for name in ("block_size", "num_blocks", "num_gpu_blocks_override", "max_num_batched_tokens", "max_model_len"):
        assert [refuses(law_id, **{name: value}) for value in (1, 2, 0, -1, True, 1.0, "1")] == [False] * 2 + [True] * 5
    for value, refused in ((0, False), (1, False), (2, False), (-1, True), (True, True), (1.0, True), ("1", True)):
        assert refuses(law_id, num_speculative_tokens=value) == refused, value
    flags = ["enable_prefix_caching"]
    known = make_law_options(law_id)
    flags += [name for name in ("disable_eagle_block_drop", "disable_lookahead_block_hashes") if name in known]
    for name in flags:
        for value, refused in ((True, False), (False, False), (1, True), (0, True), (None, True), ("true", True)):
            assert refuses(law_id, **MTP, **{name: value}) == refused, (name, value)
    fine = {"groups": ["full:16", "gdn:16"]}
    if "prefix_match_unit" in known:
        assert [refuses(law_id, **fine, prefix_match_unit=value) for value in (1, 4, 16, None, 0, -4, True, 4.0)] == [
            *[False] * 4, *[True] * 4,
        ]  # fmt: skip
    assert refuses(law_id, **fine, mamba_cache_mode="all") and not refuses(law_id, **fine, mamba_cache_mode="align")
    assert refuses(law_id, method="suffix", num_speculative_tokens=1) and not refuses(law_id, method="suffix")
    assert refuses(law_id, **WINDOW, method="ngram", num_speculative_tokens=1)
    assert not refuses(law_id, **WINDOW, method="ngram")
    with pytest.raises(LawDoesNotCover, match="method 'x', only eagle, eagle3, mtp, ngram"):
        law_of(law_id, method="x", num_speculative_tokens=1)


def make_law_options(law_id: str) -> tuple[str, ...]:
    return next(switches.options for switches in (*VLLM, *ASCEND) if switches.law_id == law_id)


@pytest.mark.parametrize("law_id", IDS)
def test_retention(law_id: str) -> None:
    def retention(value: object, groups: list[str]) -> int | str | None:
        try:
            return plan_of(law_id, groups=groups, prefix_cache_retention_interval=value).retention
        except LawDoesNotCover as error:
            return "number" if "is needed" in str(error) else "layers"

    ignored = law_id == "vllm-ascend@0.30"
    early, old = law_id.endswith(("0.23", "0.26")), law_id.endswith("0.23")
    for value in (None, 0, 16, 160):
        assert retention(value, ["full:16", "swa:16:64"]) == (None if ignored else value), value
        assert retention(value, ["full:16", "gdn:16"]) == (
            None if ignored or value is None else "layers" if old else value
        )
        assert retention(value, ["full:16"]) == (None if value is None or (value == 0 and not early) else "layers"), (
            value
        )
        assert retention(value, ["swa:16:64"]) == value
    for value in (-16, 8, 24, True, False, 16.0, "16"):
        assert retention(value, ["full:16", "swa:16:64"]) == (None if ignored else "number"), value
    assert retention(32, ["full:16", "swa:32:64"]) == (None if ignored else 32)
    assert retention(16, ["full:16", "swa:32:64"]) == (None if ignored else "number")
    default = plan_of(law_id, groups=["full:16", "swa:16:64"]).retention
    assert default == (None if early or ignored else 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("groups", "unit", "scheduler", "split"),
    [
        (["full"], 16, 16, 16),
        (["full:32", "swa:16:64"], 16, 32, 16),
        (["full:48", "gdn:16"], 16, 48, 16),
        (["full:48", "swa:32:64"], 16, 96, 32),
    ],
)
def test_blocks_and_keys(version: str, groups: list[str], unit: int, scheduler: int, split: int) -> None:
    plan = plan_of(f"vllm@{version}", groups=groups)
    several = len(groups) > 1
    assert (plan.unit, plan.scheduler_block, plan.split_block, plan.alignment) == (unit, scheduler, split, scheduler)
    assert (plan.fine, plan.caching, plan.hybrid, plan.plain) == (False, True, several, not several)
    assert plan.recurrent == ("gdn:16" in groups)
    assert (plan.budget, plan.context, plan.num_blocks) == (8192, None, None)
    off = plan_of(f"vllm@{version}", groups=groups, enable_prefix_caching=False)
    assert (off.caching, off.recurrent, off.unit, off.fine) == (False, False, scheduler if several else unit, False)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_keys_inside_a_block(version: str) -> None:
    for unit, fine in ((64, False), (32, True), (16, True), (1, True)):
        plan = plan_of(f"vllm@{version}", groups=["full:64", "gdn:64"], prefix_match_unit=unit)
        assert (plan.unit, plan.fine, plan.alignment, plan.scheduler_block) == (unit, fine, unit if fine else 64, 64)
        assert [plan.margin(kind) for kind in plan.kinds] == [unit if fine else 64] * 2
    plan = plan_of(f"vllm@{version}", groups=["full:64", "gdn:64"])
    assert (plan.unit, plan.fine) == (64, False)
    # Without a state there is nothing to hit inside.
    plan = plan_of(f"vllm@{version}", groups=["full:64", "swa:64:128"], prefix_match_unit=16)
    assert (plan.unit, plan.fine, plan.alignment) == (16, False, 64)
    beside = {"groups": ["full:64", "swa:16:40", "gdn:64"], "prefix_match_unit": 16}
    if version == "0.26":
        assert refuses(f"vllm@{version}", **beside)
        return
    plan = plan_of(f"vllm@{version}", **beside)
    assert plan.fine and [plan.margin(kind) for kind in plan.kinds] == [16, 16, 16]


@pytest.mark.parametrize("law_id", IDS)
def test_margins_of_a_drafter(law_id: str) -> None:
    """A block, or a unit where hits end inside blocks; windows cannot follow them there."""

    def margins(*groups: str, **options: Any) -> list[int]:
        plan = plan_of(law_id, groups=groups, **options)
        return [plan.margin(kind) for kind in plan.kinds]

    assert margins("full:48", "gdn:16") == [48, 16] and margins("full:64", "swa:16:64") == [64, 16]
    assert margins("full:16", "swa:16:64") == [16, 16]
    if law_id == "vllm-ascend@0.30":
        assert margins("full:64", "swa:32:64", "gdn:64", prefix_match_unit=16) == [16, 32, 16]


@pytest.mark.parametrize("law_id", IDS)
def test_the_pool(law_id: str) -> None:
    """`num_blocks` counts usable blocks, vLLM's own option block 0 too."""
    for options, usable in (({"num_blocks": 9}, 9), ({"num_gpu_blocks_override": 9}, 8)):
        for groups, tokens, rooms in (
            (["full:16"], 16, [16]),
            (["full:16", "swa:16:64"], 16, [16, 16]),
            (["full:48", "gdn:16"], 48, [48, 1]),
        ):
            law = law_of(law_id, groups=groups, **options)
            assert law.pool_tokens == usable * tokens
            assert [room.slots for room in law.rooms] == [(usable + 1) * each for each in rooms]
    made = make_law(law_id, {"groups": ["full:48", "gdn:16"]}, pool_tokens=500)
    assert made.pool_tokens == 480
    assert law_of(law_id).pool_tokens is None and [room.slots for room in law_of(law_id).rooms] == [None]


@pytest.mark.parametrize("law_id", IDS)
def test_the_context(law_id: str) -> None:
    law = law_of(law_id, max_model_len=64)
    assert ask(law, P[:63], output=[7]).hit_len == 0 and ask(law, P[:60], output=[7] * 4).hit_len == 48
    for length, outputs in ((64, 1), (61, 4)):
        with pytest.raises(LawDoesNotCover, match=rf"refuses {length} \+ {outputs} tokens: max_model_len = 64"):
            ask(law, P[:length], output=[7] * outputs)
    with pytest.raises(LawDoesNotCover, match="the prompt is empty"):
        law.plan.check(0, 1)


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_padded_last_token_needs_a_budget_for_its_drafts(version: str) -> None:
    """From 0.30 on a prompt with one token left after the hit is scheduled with its drafts, or never."""
    options = {"num_speculative_tokens": 2, "method": "ngram"}
    for budget in (3, 2):
        law = law_of(f"vllm@{version}", **options, max_num_batched_tokens=budget)
        ask(law, P[:17])
        lease = law.admit(TokenRequest(request_id="r", ids=tuple(P[:17])))
        assert lease.computed_len == 16
        if version >= "0.30" and budget < 3:
            with pytest.raises(LawDoesNotCover, match="its drafts exceed the budget"):
                law.chunk_end(lease)
        else:
            assert law.chunk_end(lease) == 17
        later = prefill_step(law.plan, 17, 16, 0, first=False)  # not the first step of a request: never padded
        assert (later.end, later.target) == (17, 17)


@pytest.mark.parametrize("version", ["0.30", "0.32", "0.33"])
def test_drafts_behind_a_boundary_are_not_scheduled_with_the_last_token(version: str) -> None:
    plan = plan_of(f"vllm@{version}", groups=["full:16", "gdn:16"], num_speculative_tokens=2, method="mtp")
    targets = [prefill_step(plan, start + 1, start, 0, first=True).target for start in (44, 45, 46, 47, 48, 49)]
    assert targets == [47, 48, 47, 48, 51, 52]


def test_decode_steps_are_as_long_as_budget_and_context_allow() -> None:
    for options, target in (
        ({}, 53), ({"max_num_batched_tokens": 3}, 52), ({"max_num_batched_tokens": 1}, 50), ({"max_model_len": 52}, 51),
        ({"max_model_len": 50}, 50),
    ):  # fmt: skip
        plan = plan_of("vllm@0.30", num_speculative_tokens=3, method="mtp", **options)
        step = decode_step(plan, 50)
        assert (step.start, step.end, step.target) == (49, 50, target), options


def test_later_steps_leave_the_last_position_of_the_context() -> None:
    for context, first, later in ((50, 50, 49), (51, 50, 50), (52, 50, 50)):
        plan = plan_of("vllm@0.32", max_model_len=context)
        assert prefill_step(plan, 50, 40, 0, first=True).end == first
        assert prefill_step(plan, 50, 40, 0, first=False).end == later


def test_a_finished_prompt_has_no_further_step() -> None:
    law = law_of("vllm@0.32", **STATES)
    lease = law.admit(TokenRequest(request_id="r", ids=tuple(P[:20]), max_tokens=3))
    assert law.chunk_end(lease) == 16
    for end in (16, 20):
        law.computed(lease, end)
    assert law.chunk_end(lease) == 20
    law.append(lease, 5)
    law.computed(lease, 21)
    assert law.chunk_end(lease) == 20
    law.release(lease)
    law.check_integrity()


# -- block sizes of hybrids --------------------------------------------------------------------------------------------

SIZES = HybridBytes(k_per_token=1024, kv_per_token=2048, recurrent=1_572_864, conv=61_440)


def test_numbers_behind_a_keys_only_block() -> None:
    block = hybrid_block_size("vllm-ascend@0.26", SIZES)
    assert (block.tokens_needed, block.alignment, block.padding) == (1536, 128, 61_440 / 3_207_168)
    assert block.formula == (
        "recurrent 1,572,864 B / (K 1,024 B per token) = 1,536 tokens, rounded up to a multiple of 128: 1,536; "
        "the conv state (61,440 B) is added to the page"
    )
    for configured, size in ((None, 1536), (1024, 1536), (1536, 1536), (2048, 2048)):
        block = hybrid_block_size("vllm-ascend@0.23", SIZES, configured=configured)
        assert (block.block_size, block.page_bytes, block.state_page_bytes) == (size, size * 2048, size * 2048 + 61_440)
    uneven = HybridBytes(k_per_token=1000, kv_per_token=2000, recurrent=1_572_864, conv=0)
    with pytest.raises(LawDoesNotCover, match=r"1664 tokens of keys are 1,664,000 B, not exactly .* 1,572,864 B"):
        hybrid_block_size("vllm-ascend@0.26", uneven)
    small = HybridBytes(k_per_token=1000, kv_per_token=2000, recurrent=1000 * 128 - 1, conv=0)
    with pytest.raises(LawDoesNotCover, match="128 tokens"):
        hybrid_block_size("vllm-ascend@0.26", small)


def test_numbers_behind_a_mainline_block() -> None:
    block = hybrid_block_size("vllm@0.30", SIZES, kernel_block=100)
    assert (block.tokens_needed, block.block_size, block.alignment) == (798, 800, 100)
    assert block.padding == (800 * 2048 - 1_634_304) / 1_634_304
    assert block.formula == (
        "(recurrent 1,572,864 + conv 61,440) B / (K+V 2,048 B per token) = 798 tokens, rounded up to a multiple of "
        "100: 800"
    )
    for state, needed, size in ((2048 * 16, 16, 16), (2048 * 16 + 1, 17, 32), (2048 * 15 + 1, 16, 16), (1, 1, 16)):
        block = hybrid_block_size("vllm@0.30", HybridBytes(k_per_token=0, kv_per_token=2048, recurrent=state, conv=0))
        assert (block.tokens_needed, block.block_size) == (needed, size)


@pytest.mark.parametrize(
    "law_id", [law_id for law_id in RELEASES if law_id not in ("vllm-ascend@0.23", "vllm-ascend@0.26")]
)
def test_alignments(law_id: str) -> None:
    def alignment(**options: Any) -> int:
        return hybrid_block_size(law_id, SIZES, **options).alignment

    fixed, mla = law_id == "vllm-ascend@0.30", law_id not in ("vllm@0.23", "vllm@0.26")
    assert alignment() == (128 if fixed else 16)
    assert alignment(kernel_block=256) == (128 if fixed else 256)
    assert alignment(configured=64) == (128 if fixed else 64) and alignment(configured=256) == 256
    assert alignment(configured=8) == (128 if fixed else 16)
    assert alignment(mla=True) == (128 if mla else 16) and alignment(mla=True, configured=256) == 256
    assert alignment(checkpoint_alignment=24) == (128 if fixed else 48 if law_id == "vllm@0.33" else 16)
    block = hybrid_block_size(law_id, SIZES, backends_alignment=300).block_size
    assert block == (900 if law_id in ("vllm@0.32", "vllm@0.33") else 896 if fixed else 800)


def test_heads_on_each_rank() -> None:
    def rank(kv_heads: int, tp: int) -> tuple[int, int]:
        sizes = HybridShape(
            kv_heads=kv_heads, head_dim=8, kv_dtype_bytes=2, recurrent_heads=8, recurrent_head_dims=(3, 5),
            recurrent_dtype_bytes=4, conv_bytes_per_rank=11, tp=tp,
        ).bytes_per_rank()  # fmt: skip
        assert (sizes.kv_per_token, sizes.conv, sizes.state) == (2 * sizes.k_per_token, 11, sizes.recurrent + 11)
        return sizes.k_per_token, sizes.recurrent

    assert [rank(4, tp) for tp in (1, 2, 4, 8)] == [(64, 480), (32, 240), (16, 120), (16, 60)]
