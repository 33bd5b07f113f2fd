"""Key: the same IDs under other keys; a hit across keys is the failure.

    A            [ prompt ]     no key       cold
    A            [ prompt ]     no key       hits: the cache works
    A salt 1     [ prompt ]     salt 1       must miss
    A salt 1     [ prompt ]     salt 1       hits its own
    A salt 2     [ prompt ]     salt 2       must miss
    A adapter 1  ...                         the same with adapters (`by`)
    A            [ prompt ]     no key       hits again

Separates: engines whose keys hold salt and adapter from those that would hand one tenant's cache to another. A hit
under a key's first use is the finding `forbidden_hit`, whatever any law says.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from workloads.families.base import Count, Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Send
from workloads.source import TokenSource


class Key(Parameters):
    """`by`: what separates; adapters exist for laws and lookups only."""

    length: Length = relative("4g+1")
    by: Annotated[tuple[Literal["salt", "adapter"], ...], Field(min_length=1)] = ("salt",)
    keys: Count = 2


def key(parameters: Key, source: TokenSource) -> tuple[Send, ...]:
    """Without a key twice, under each key twice, without a key once more."""
    prompt = source.fresh(parameters.length)

    def send(label: str, *, salt: str | None = None, adapter: str | None = None, first: bool = False) -> Send:
        return Send(
            label=label,
            parts=(prompt,),
            max_tokens=parameters.max_tokens,
            namespace=salt,
            lora=adapter,
            at_most=0 if first else None,
        )

    sends = [send("A"), send("A")]
    for kind in dict.fromkeys(parameters.by):
        for number in range(1, parameters.keys + 1):
            name = f"{kind} {number}"
            salt, adapter = (name, None) if kind == "salt" else (None, f"adapter-{number}")
            sends += [send(f"A {name}", salt=salt, adapter=adapter, first=first) for first in (True, False)]
    return (*sends, send("A"))
