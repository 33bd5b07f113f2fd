"""Which law a llama-server gets, and what an attached one has to be told first; no engine runs."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.llama_cpp.law import server_law
from adapters.llama_cpp.options import LlamaCppOptions
from vocabulary.errors import LawDoesNotCover

SLOT = {"n_ctx_slot": 4096}
ALWAYS = {"cache_ram_mib": 0, "n_cache_reuse": 0, "slot_prompt_similarity": 0.1}
CHECKPOINTS = {"n_batch": 2048, "n_ubatch": 512, "n_ctx_checkpoints": 32, "checkpoint_min_step": 8192}


def law(groups: tuple[str, ...] = ("full",), facts: Any = SLOT, *, attached: bool = False, **said: Any) -> Any:
    return server_law(LlamaCppOptions.model_validate(said), facts, groups, attached=attached)


def test_the_law_reads_what_decides_and_the_server_has_the_last_word() -> None:
    law_id, options = law(facts={"n_ctx_slot": 4096, "n_parallel": 2, "kv_unified": None}, n_parallel=3, n_threads=2)
    assert law_id == "llama.cpp"
    assert options == {
        "groups": ["full"], "n_parallel": 2, "n_ctx_slot": 4096, "cache_idle_slots": True, "swa_full": False,
        **ALWAYS, **CHECKPOINTS,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "parallel", "deciding"),
    [
        (("full",), 1, ALWAYS),
        (("full",), 2, ALWAYS | {"kv_unified": False}),
        (("full", "gdn"), 1, ALWAYS | CHECKPOINTS),
        (("full", "swa:64"), 1, ALWAYS | CHECKPOINTS | {"swa_full": False}),
    ],
)
def test_an_attached_server_is_stated_in_all_that_decides(
    groups: tuple[str, ...], parallel: int, deciding: dict[str, Any]
) -> None:
    said = deciding | {"n_parallel": parallel}
    assert law(groups, attached=True, **said)[1]["groups"] == list(groups)
    for name in deciding:
        with pytest.raises(LawDoesNotCover, match=f"does not report {name};"):
            law(groups, attached=True, **{key: value for key, value in said.items() if key != name})
    assert law(groups, n_parallel=parallel)[0] == "llama.cpp"  # a server of ours has our defaults


def test_an_attached_servers_ram_cache_holds_what_was_there_before() -> None:
    with pytest.raises(LawDoesNotCover, match="RAM cache holds what was there before"):
        law(attached=True, cache_ram_mib=1, n_cache_reuse=0, slot_prompt_similarity=0.1)
    assert law(cache_ram_mib=1, facts=SLOT | {"state_bytes_per_token": 8})[1]["cache_ram_mib"] == 1
