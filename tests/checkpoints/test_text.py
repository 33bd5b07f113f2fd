"""Text and token IDs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkpoints import Checkpoint
from checkpoints.text import decode, encode
from vocabulary.errors import UsageError


@pytest.fixture(scope="module")
def tiny(checkpoint: Callable[[str], Checkpoint]) -> Checkpoint:
    return checkpoint("tiny-qwen3")


def test_ascii_is_its_bytes_but_for_the_one_merge(tiny: Checkpoint) -> None:
    assert encode(tiny, "say to\n") == (*b"say", 256, *b"o\n")
    assert encode(tiny, "") == ()


def test_named_tokens_stand_for_themselves(tiny: Checkpoint) -> None:
    assert encode(tiny, "<|t200|>a<|eos|>") == (200, ord("a"), 258)


def test_every_id_survives_the_way_there_and_back(tiny: Checkpoint) -> None:
    ids = tuple(range(tiny.vocab_size))
    assert encode(tiny, decode(tiny, ids)) == ids


def test_text_outside_the_vocabulary_is_an_error_and_not_dropped(tiny: Checkpoint) -> None:
    with pytest.raises(UsageError, match=r"character 3 on \('é"):
        encode(tiny, "cafés")


@pytest.mark.parametrize("token_id", [-1, 2048])
def test_ids_outside_the_vocabulary_are_an_error(token_id: int, tiny: Checkpoint) -> None:
    with pytest.raises(UsageError, match=f"{token_id} outside"):
        decode(tiny, [5, token_id])
