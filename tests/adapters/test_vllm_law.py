"""Which law a vLLM gets from what its scheduler reports; no engine runs."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.vllm.facts import complete_facts
from adapters.vllm.law import law_for
from reference_engine.laws.registry import make_law
from vocabulary.engine import Mode
from vocabulary.errors import LawDoesNotCover

REPORTED: dict[str, Any] = {
    "block_size": 32,
    "enable_prefix_caching": True,
    "num_gpu_blocks": 100,
    "max_num_batched_tokens": 2048,
    "retention_interval": 0,
    "prefix_match_unit": None,
    "mamba_cache_mode": "align",
    "async_scheduling": False,
    "speculative_method": None,
}


def law(groups: list[str], version: str = "0.32.0", **more: Any) -> tuple[str, dict[str, Any]]:
    return law_for(version, REPORTED | {"layer_groups": groups} | more, ())


def test_hybrids_get_their_law() -> None:
    law_id, options = law(["full:32", *["swa:32:64"] * 5])
    assert (law_id, options["groups"], options["num_blocks"]) == ("vllm@0.32", ["full:32", *["swa:32:64"] * 5], 99)
    assert options["prefix_cache_retention_interval"] == 0
    options = law(["gdn:256", "gdn:256", "gdn:256", "full:256"], version="0.30.0", prefix_match_unit=32)[1]
    assert (options["mamba_cache_mode"], options["prefix_match_unit"]) == ("align", 32)
    assert make_law("vllm@0.30", options).granule == 32


def test_full_attention_needs_no_reported_groups() -> None:
    assert law_for("0.32.0", REPORTED, ("full",))[1]["groups"] == ["full:32"]


def test_drafters() -> None:
    options = law(["full:32"], speculative_method="eagle", num_speculative_tokens=2, disable_eagle_block_drop=False)[1]
    assert (options["method"], options["num_speculative_tokens"]) == ("eagle", 2)
    assert law(["full:32"], speculative_method="ngram", num_speculative_tokens=2)[1]["method"] == "ngram"
    options = law(
        ["full:32"], "0.33.0", speculative_method="mtp", num_speculative_tokens=1, disable_lookahead_block_hashes=True
    )[1]
    assert options["disable_lookahead_block_hashes"] is True


def test_options_of_drafters_are_named_only_where_the_version_has_them() -> None:
    drafted = {"speculative_method": "eagle", "num_speculative_tokens": 2, "disable_eagle_block_drop": True}
    assert law(["full:32"], "0.33.0", **drafted)[1]["disable_eagle_block_drop"] is True
    assert "disable_eagle_block_drop" not in law(["full:32"], "0.23.0", **drafted)[1]
    assert "num_speculative_tokens" not in law(["full:32"], num_speculative_tokens=2)[1]  # without a method


def test_what_a_law_is_told_depends_on_the_groups() -> None:
    told = {"groups": ["full:32"], "block_size": 32, "enable_prefix_caching": True, "max_num_batched_tokens": 2048}
    assert law(["full:32"])[1] == told | {"num_blocks": 99}
    window = law(["full:32", "swa:32:64"], num_gpu_blocks=None)[1]
    assert window == told | {"groups": ["full:32", "swa:32:64"], "prefix_cache_retention_interval": 0}
    state = law(["full:32", "gdn:32"], num_gpu_blocks=2)[1]
    assert (state["mamba_cache_mode"], state["prefix_cache_retention_interval"]) == ("align", 0)
    assert (state["num_blocks"], "prefix_match_unit" in state) == (1, False)
    off = law(["full:32", "gdn:32"], enable_prefix_caching=False, mamba_cache_mode="none")[1]
    assert "mamba_cache_mode" not in off and off["enable_prefix_caching"] is False
    assert "max_num_batched_tokens" not in law(["full:32"], max_num_batched_tokens=None)[1]


def test_one_rank_is_covered() -> None:
    assert law(["full:32"], decode_context_parallel_size=1)[0] == "vllm@0.32"


def test_asynchronous_scheduling_leaves_evictions_of_hybrids_open() -> None:
    assert "num_blocks" in law(["full:32"], async_scheduling=True)[1]
    assert "num_blocks" not in law(["full:32", "swa:32:64"], async_scheduling=True)[1]
    raw = {
        "engine": "vllm", "version": "0.32.0", "device": "cpu", "dtype": "float32", "granule": 32, "groups": ["full"],
        "context_len": 4096, "vocab_size": 128, "can_salt": True,
        "options": REPORTED | {"layer_groups": ["full:32", "swa:32:64"], "async_scheduling": True},
    }  # fmt: skip
    facts = complete_facts(raw, Mode.WORKER, ())
    assert facts.law == "vllm@0.32" and any("evictions" in note for note in facts.notes)


@pytest.mark.parametrize(
    ("groups", "more", "reason"),
    [
        (["full:32"], {"version": "0.29.0"}, "laws are known for"),
        (["full:32"], {"kv_connector": True}, "KV connector"),
        (["full:32", "gdn:32"], {"prefill_checkpoints": True}, "prefill checkpoints"),
        (["full:32", "swa:32:64"], {"window_replay": True}, "replay"),
        (["full:32"], {"decode_context_parallel_size": 2}, "decode_context_parallel_size = 2"),
        (["MLAAttentionSpec"], {}, "MLAAttentionSpec"),
        ([], {}, "without their block sizes"),
        (["full:32", "gdn:32"], {"mamba_cache_mode": "all"}, "mamba_cache_mode"),
        (["full:32"], {"speculative_method": "unknown"}, "of unknown length"),
        (["full:32"], {"speculative_method": "draft_model", "num_speculative_tokens": 2}, "draft_model"),
    ],
)
def test_what_no_law_covers(groups: list[str], more: dict[str, Any], reason: str) -> None:
    with pytest.raises(LawDoesNotCover, match=reason):
        law(groups, **more)
