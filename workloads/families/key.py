"""Key: the same IDs under other keys; a hit across keys is the failure.

    A            [ prompt ]     no key       cold
    A            [ prompt ]     no key       hits: the cache works
    A salt 1     [ prompt ]     salt 1       must miss
    A salt 1     [ prompt ]     salt 1       hits its own
    A salt 2     [ prompt ]     salt 2       must miss
    A adapter 1  ...                         the same with adapters (`by`)
    A image 1    [ pro | 1 | ]  the same IDs, image 1 in the middle: must miss from the image on
    A image 1    [ pro | 1 | ]               hits its own
    A image 2    [ pro | 2 | ]  another one at the same place: must miss from there on
    A            [ prompt ]     no key       hits again

Separates: engines whose keys hold salt, adapter and the content of images from those that would hand one tenant's cache
to another, or answer about another image. A hit under a key's first use, or behind the begin of a new image, is the
finding `forbidden_hit`, whatever any law says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from vocabulary.engine import Media
from workloads.families.base import Count, Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Send
from workloads.source import TokenSource


class Key(Parameters):
    """`by`: what separates; adapters and images exist for laws and lookups only."""

    length: Length = relative("4g+1")
    by: Annotated[tuple[Literal["salt", "adapter", "image"], ...], Field(min_length=1)] = ("salt",)
    keys: Count = 2


def key(parameters: Key, source: TokenSource) -> tuple[Send, ...]:
    """Without a key twice, under each key twice, without a key once more."""
    prompt = source.fresh(parameters.length)

    plain = Send(label="A", parts=(prompt,), max_tokens=parameters.max_tokens)
    sends = [plain, plain]
    for kind in dict.fromkeys(parameters.by):
        for number in range(1, parameters.keys + 1):
            sends += _twice(plain, kind, f"{kind} {number}", len(prompt))
    return (*sends, plain)


def _twice(plain: Send, kind: str, name: str, length: int) -> tuple[Send, Send]:
    """Under a key for the first time and again."""
    again, at_most = replace(plain, label=f"A {name}"), 0
    if kind == "salt":
        again = replace(again, namespace=name)
    elif kind == "adapter":
        again = replace(again, lora=name.replace(" ", "-"))
    else:
        at_most = length // 2
        again = replace(again, media=(Media(name, at_most, max(1, length // 4)),))
    return replace(again, at_most=at_most), again
