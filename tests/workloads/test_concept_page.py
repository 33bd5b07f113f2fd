"""The concept page is documentation and the quickstart's input: its numbers are checked against the laws."""

from __future__ import annotations

from pathlib import Path

import pytest

import workloads
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest

PAGE = Path(workloads.__file__).parent / "catalogue" / "prefix_caching.md"


def second_hit(block_size: int, shared: int, length: int) -> int:
    law = make_law("vllm@0.32", {"block_size": block_size})
    for start in (0, 1000):
        ids = (*range(shared), *range(5000 + start, 5000 + start + length - shared))
        request = TokenRequest(request_id=str(start), ids=ids)
        hit = law.send(request).hit_len
        law.finish(request, (1,))
    return hit


def test_the_page_is_plain_ascii_without_control_characters() -> None:
    assert all(character == "\n" or 32 <= ord(character) < 127 for character in PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("block", "hit", "share"), [(64, 64, 49), (128, 0, 0)])
def test_zero_and_forty_nine_percent_are_what_the_law_says(block: int, hit: int, share: int) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert second_hit(block, 100, 130) == hit
    assert 100 * hit // 130 == share
    assert "130 tokens share their first 100" in page
    assert f"{share} percent" in page


def test_a_common_prefix_of_a_hundred_is_worth_a_granule() -> None:
    assert second_hit(64, 100, 200) == 64
