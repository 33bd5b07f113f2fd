"""Layer groups as text."""

from __future__ import annotations

import pytest

from vocabulary.errors import UsageError
from vocabulary.groups import LayerGroup, parse_groups


@pytest.mark.parametrize("text", ["full", "full:528", "swa:128", "swa:16:128", "gdn", "gdn:528"])
def test_text_and_back(text: str) -> None:
    assert str(LayerGroup.parse(text)) == text


def test_numbers() -> None:
    swa, gdn = parse_groups(["swa:16:64", "gdn:528"])
    assert (swa.block, swa.window, gdn.block) == (16, 64, 528)


@pytest.mark.parametrize(
    "text", ["", "Full", "full:", "full:0", "full:-1", "full:1:2", "swa", "swa:1:2:3", "gdn:x", "full:²"]
)
def test_refused(text: str) -> None:
    with pytest.raises(UsageError, match="layer group"):
        LayerGroup.parse(text)
