"""A byte-level BPE vocabulary, and the tokenizer files made from it.

llama.cpp reads the vocabulary from the GGUF and picks its pre-tokenizer by name; HF readers find the
pre-tokenizer spelled out in tokenizer.json. `PRE_TOKENIZERS` pairs the two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabulary.errors import UsageError

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

PRE_TOKENIZERS: dict[str, Any] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    },
}
"""llama.cpp's `tokenizer.ggml.pre` to the HF pre-tokenizer that splits text the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BpeVocabulary:
    """Tokens in the byte-level alphabet of GPT-2, merges, and the tokens that are not text."""

    tokens: tuple[str, ...]
    """Token of each ID."""
    merges: tuple[str, ...]
    """"left right", in order of priority."""
    control: frozenset[int]
    """Special IDs, such as begin and end of text."""
    literal: frozenset[int] = frozenset()
    """IDs outside BPE that stand for their own name wherever it occurs in a text."""
    bos: int
    eos: int
    pre: str
    """Name of the pre-tokenizer, a key of `PRE_TOKENIZERS`."""
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if self.pre not in PRE_TOKENIZERS:
            raise UsageError(
                f"pre-tokenizer {self.pre!r} has no HF counterpart here (known: {', '.join(PRE_TOKENIZERS)}); "
                f"HF engines and llama.cpp would split a text differently"
            )

    def write(self, directory: Path, context_len: int) -> None:
        """Write tokenizer.json and tokenizer_config.json as HF readers expect them."""
        (directory / "tokenizer.json").write_text(json.dumps(self._tokenizer(), ensure_ascii=False), encoding="utf-8")
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.tokens[self.bos],
            "eos_token": self.tokens[self.eos],
            "pad_token": self.tokens[self.eos],
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": context_len,
        }
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")

    def _tokenizer(self) -> dict[str, Any]:
        added = [
            {
                "id": token_id,
                "content": self.tokens[token_id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": token_id in self.control,
            }
            for token_id in sorted(self.control | self.literal)
        ]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": PRE_TOKENIZERS[self.pre],
            "post_processor": None,
            "decoder": _BYTE_LEVEL,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": {token: token_id for token_id, token in enumerate(self.tokens)},
                "merges": [merge.split(" ") for merge in self.merges],
            },
        }


def byte_alphabet() -> tuple[str, ...]:
    """The printable character that stands for each byte in GPT-2's alphabet.

    Printable Latin-1 stands for itself; the other bytes take the code points from 256 on, in order.
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in own else next(others)) for byte in range(256))
