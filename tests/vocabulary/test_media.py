"""Items in prompts: what stands in for them, and which places they may have."""

from __future__ import annotations

import pytest

from vocabulary.engine import Media, TokenRequest


def request(*media: Media) -> TokenRequest:
    return TokenRequest(request_id="r", ids=tuple(range(100, 140)), media=media)


def test_positions_of_an_item_differ_with_its_identifier_its_place_and_the_ids_under_it() -> None:
    one = request(Media("a", 4, 8)).array
    assert (one[:4] == range(100, 104)).all() and (one[12:] == range(112, 140)).all()
    assert (one[4:12] < 0).all()
    for other in (Media("b", 4, 8), Media("a", 5, 7)):
        assert (request(other).array[5:12] != one[5:12]).all()
    elsewhere = TokenRequest(request_id="r", ids=(*range(100, 104), *range(36)), media=(Media("a", 4, 8),))
    assert (elsewhere.array[4:12] < 0).all() and (elsewhere.array[4:12] != one[4:12]).all()


def test_whole_prompts_and_neighbours_are_items() -> None:
    assert (request(Media("a", 0, 40)).array < 0).all()
    assert (request(Media("a", 0, 20), Media("a", 20, 20)).array < 0).all()


@pytest.mark.parametrize(
    "media",
    [
        [Media("a", 4, 0)],
        [Media("a", -1, 4)],
        [Media("a", 39, 2)],
        [Media("a", 40, 1)],
        [Media("a", 4, 8), Media("b", 11, 2)],
        [Media("a", 20, 2), Media("b", 4, 2)],
    ],
)
def test_other_places_are_refused(media: list[Media]) -> None:
    with pytest.raises(ValueError, match="is not within"):
        request(*media)
