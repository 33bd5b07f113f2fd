"""Questions: a real document followed by one of several questions.

    question 1   [ document ][ question 1 ]      cold
    question 2   [ document ][ question 2 ]      hits the document
    ...          then the same questions once more, in the same order

Real text, tokenised once by the model's own tokenizer; every engine gets the same IDs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from workloads.families.base import Parameters
from workloads.sequence import Send
from workloads.source import TokenSource


class Questions(Parameters):
    """`document` is a text file, relative to the experiment file."""

    document: str
    questions: Annotated[tuple[str, ...], Field(min_length=1)]
    rounds: Annotated[int, Field(ge=1, le=20)] = 2


def questions(parameters: Questions, source: TokenSource) -> tuple[Send, ...]:
    """All questions, `rounds` times."""
    document = source.file(parameters.document).rstrip()
    sends = []
    for number, question in enumerate(parameters.questions, start=1):
        prompt = source.text(f"{document}\n\nQuestion: {question}\nAnswer:")
        sends.append(Send(label=f"question {number}", parts=(prompt,), max_tokens=parameters.max_tokens))
    return tuple(sends * parameters.rounds)
