"""SGLang's options as its law reads them: what is taken, what is refused, and where the border lies.

Source of defaults and of what belongs together: SGLang 0.5.23, srt/server_args.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from refusing import refuses

from reference_engine.laws.registry import make_law
from reference_engine.laws.sglang.config import SglangConfig
from reference_engine.laws.sglang.law import SglangLaw

SGLANG = "sglang@0.5.23"
SWA, GDN = {"groups": ["full", "swa:128"]}, {"groups": ["full", "gdn"]}


def made(pool_tokens: int | None = None, **options: Any) -> SglangLaw:
    law = make_law(SGLANG, options, pool_tokens=pool_tokens)
    assert isinstance(law, SglangLaw)
    return law


def config(pool_tokens: int | None = None, **options: Any) -> SglangConfig:
    return made(pool_tokens, **options).config


NO_NUMBERS = (True, False, 1.0, "1", [1])
"""What is no whole number, whatever Python makes of it."""


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("page_size", (None, 1, 2), (0, -1)),
        ("chunked_prefill_size", (None, -1, 1), (0, -2)),
        ("max_total_tokens", (None, 1), (0, -1)),
        ("max_mamba_cache_size", (None, 1), (0, -1)),
        ("mamba_track_interval", (1, 2), (None, 0, -1)),
        ("mamba_max_states_per_path", (None, -1, 1), (0, -2)),
        ("logprob_start_len", (0, 1), (None, -1)),
        ("num_pages", (None, 1), (0, -1)),
    ],
)
def test_whole_numbers(name: str, taken: tuple[int | None, ...], refused: tuple[int | None, ...]) -> None:
    assert not any(refuses(SGLANG, **GDN, **{name: value}) for value in taken)
    assert [value for value in (*refused, *NO_NUMBERS) if not refuses(SGLANG, **GDN, **{name: value})] == []


def test_defaults() -> None:
    plain = config()
    assert (plain.page, plain.chunk, plain.window, plain.strategy) == (1, None, None, None)
    assert (plain.track_interval, plain.states_per_path, plain.bigram, plain.logprob_start) == (256, None, False, 0)
    assert (plain.pool_tokens, plain.window_pool_tokens, plain.state_slots) == (None, None, None)
    assert made().reads_chains
    assert plain.enabled and plain.plain and not plain.eager and not plain.tracks
    assert not config(disable_radix_cache=True).enabled
    assert not config(**SWA).plain and not config(**GDN).plain
    assert config(groups=["full", "swa:16:128"]).page == config(page_size=16).page == 16
    assert [refuses(SGLANG, groups=["full:16"], page_size=page) for page in (8, 16)] == [True, False]
    assert [refuses(SGLANG, disable_radix_cache=value) for value in (0, 1, None, "true")] == [True] * 4


def test_a_window_counts_the_tokens_before_one() -> None:
    assert [config(groups=["full", f"swa:{window}"]).window for window in (2, 128)] == [1, 127]
    assert refuses(SGLANG, groups=["full", "swa:1"])


def test_a_chunk_is_a_page_or_more_and_with_states_whole_pages() -> None:
    def taken(**options: Any) -> list[int]:
        return [
            size
            for size in (15, 16, 17, 31, 32)
            if not refuses(SGLANG, **options, page_size=16, chunked_prefill_size=size)
        ]

    assert taken() == taken(**SWA) == [16, 17, 31, 32]
    assert taken(**GDN) == [16, 32]
    assert config(chunked_prefill_size=17).chunk == 17


def test_pools_are_whole_pages() -> None:
    assert [config(page_size=16, max_total_tokens=tokens).pool_tokens for tokens in (31, 32, 47)] == [16, 32, 32]
    assert config(**SWA, max_total_tokens=111).window_pool_tokens == 88  # 0.8 where absent
    for ratio, tokens in ((0, 0), (0.5, 48), (0.79, 64), (1, 96)):
        found = config(**SWA, page_size=16, max_total_tokens=111, swa_full_tokens_ratio=ratio)
        assert found.window_pool_tokens == tokens
    assert config(max_total_tokens=111).window_pool_tokens is None is config(**SWA).window_pool_tokens
    for value in (-0.1, 1.1, True, None, "0.5"):
        assert refuses(SGLANG, **SWA, swa_full_tokens_ratio=value), value


def test_a_pool_of_the_reference_engine_reserves_whole_prompts() -> None:
    """By its size in tokens or in pages, either of which goes before SGLang's own option."""
    for law in (
        made(95, page_size=16, max_total_tokens=320),
        made(page_size=16, num_pages=5, max_total_tokens=320),
    ):
        assert (law.pool_tokens, law.config.eager, law.chunks_bind) == (80, True, False)
    own = made(page_size=16, max_total_tokens=320)
    assert (own.pool_tokens, own.config.eager, own.chunks_bind) == (320, False, True)


def test_rooms_are_the_pools() -> None:
    rooms = made(**SWA, max_total_tokens=100, max_mamba_cache_size=5).rooms
    assert [(str(room.group), room.slots) for room in rooms] == [("full", 100), ("swa:128", 80)]
    rooms = made(**GDN, max_total_tokens=100, max_mamba_cache_size=5).rooms
    assert [(str(room.group), room.slots) for room in rooms] == [("full", 100), ("gdn", 5)]


def test_states() -> None:
    """On a grid of 64 tokens or a page, in whole pages; during decode also of the tracking interval."""
    for page, chunk, grid, track in ((1, 64, 64, 256), (16, 64, 64, 256), (48, 64, 192, 768), (128, 128, 128, 256)):
        found = config(**GDN, page_size=page)
        assert (found.state_chunk, found.state_grid, found.track_grid) == (chunk, grid, track)
    assert config(**GDN, page_size=16, mamba_track_interval=96).track_grid == 192
    assert config(**GDN, mamba_max_states_per_path=-1).states_per_path is None
    assert config(**GDN, mamba_max_states_per_path=1).states_per_path == 1
    assert config(**GDN, max_mamba_cache_size=5).state_slots == 5
    assert config(max_mamba_cache_size=5).state_slots is None


def test_the_strategy_follows_the_page() -> None:
    name = "mamba_radix_cache_strategy"
    for value in (None, "", "auto"):
        given = {**GDN, name: value}
        assert (config(**given).strategy, config(**given, page_size=16).strategy) == ("no_buffer", "extra_buffer")
    assert config(**GDN).strategy == "no_buffer" and not config(**GDN).tracks
    assert config(**GDN, **{name: "extra_buffer"}).tracks
    assert refuses(SGLANG, **GDN, **{name: "no_buffer"}, page_size=2)
    assert config(**SWA, **{name: "extra_buffer"}).strategy is None


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN"])
def test_pairs_of_tokens(algorithm: str) -> None:
    assert config(speculative_algorithm=algorithm).bigram and config(**SWA, speculative_algorithm=algorithm).bigram
    assert not config(**GDN, speculative_algorithm=algorithm).bigram


@pytest.mark.parametrize("algorithm", [None, "NGRAM", "STANDALONE", "DFLASH"])
def test_tokens_alone(algorithm: str | None) -> None:
    assert not config(speculative_algorithm=algorithm).bigram
