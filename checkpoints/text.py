"""Text to token IDs and back, with the checkpoint's own tokenizer, so that every engine gets the same IDs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from checkpoints.folder import Checkpoint
from vocabulary.errors import UsageError


def encode(checkpoint: Checkpoint, text: str) -> tuple[int, ...]:
    """IDs of `text`; none is added for its begin or end.

    A special token's name in the text becomes that token. UsageError when the vocabulary cannot express
    the text: the tiny models know ASCII only, and BPE would drop the rest without a word.
    """
    ids = tuple(_tokenizer(checkpoint.directory).encode(text, add_special_tokens=False).ids)
    if (back := decode(checkpoint, ids)) != text:
        at = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
        raise UsageError(
            f"{checkpoint.name}: its vocabulary cannot express the text from character {at} on "
            f"({text[at : at + 20]!r}); use other text or another model"
        )
    return ids


def decode(checkpoint: Checkpoint, ids: Sequence[int]) -> str:
    """The text of `ids`, special tokens by name; UsageError for an ID outside the vocabulary."""
    if outside := [token_id for token_id in ids if not 0 <= token_id < checkpoint.vocab_size]:
        raise UsageError(f"{checkpoint.name}: token ID {outside[0]} outside [0, {checkpoint.vocab_size})")
    text: str = _tokenizer(checkpoint.directory).decode(list(ids), skip_special_tokens=False)
    return text


@lru_cache(maxsize=8)
def _tokenizer(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UsageError(f"{path}: missing; make the model folder again with `hitparity model make`")
    return Tokenizer.from_file(str(path))
