"""Features: requests that turn the lookup off, on a warm and on an empty cache.

    A              [ prompt A ]     cold
    A              [ prompt A ]     hits
    A with f       [ prompt A ]     asks for f, such as log-probabilities of the prompt
    A              [ prompt A ]     was anything lost?
    B with f       [ prompt B ]     f on a cold prompt
    B              [ prompt B ]     was it published?

Separates: features that skip the lookup, that shorten it, and that are ignored; and whether a request that may not
read the cache still writes it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from vocabulary.engine import Feature
from workloads.families.base import Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Send
from workloads.source import TokenSource


class Features(Parameters):
    """`features` are asked for one after the other, each with prompts of its own."""

    length: Length = relative("4g+1")
    features: Annotated[tuple[Feature, ...], Field(min_length=1)] = (Feature.PROMPT_LOGPROBS,)


def features(parameters: Features, source: TokenSource) -> tuple[Send, ...]:
    """Six sends per feature."""
    sends = []
    for feature in parameters.features:
        for name, asked in (("A", (False, False, True, False)), ("B", (True, False))):
            prompt = source.fresh(parameters.length)
            sends += [
                Send(
                    label=f"{name} with {feature.value}" if with_feature else name,
                    parts=(prompt,),
                    max_tokens=parameters.max_tokens,
                    features=frozenset({feature}) if with_feature else frozenset(),
                )
                for with_feature in asked
            ]
    return tuple(sends)
