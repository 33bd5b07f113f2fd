"""A model in memory, and the folder written from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from checkpoints.bf16 import Bits, to_floats
from checkpoints.bpe import BpeVocabulary
from checkpoints.folder import GGUF, MANIFEST, WEIGHTS, Manifest, sha256_of
from checkpoints.gguf_file import GgufWriter
from checkpoints.layout import Config

_SAFETENSORS_TYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Weights with everything an engine needs beside them."""

    name: str
    seed: int | None
    """None: the weights were not drawn."""
    dtype: Literal["float32", "bfloat16"]
    """How the weights are stored; float32 ones are values that bfloat16 holds exactly."""
    config: Config
    vocabulary: BpeVocabulary
    weights: Mapping[str, Bits]
    """By HF name."""

    def write(self, directory: Path, generator: int) -> None:
        """Write all files into an existing folder, the manifest last; `generator` is the version recorded in it."""
        ends = {"bos_token_id": self.vocabulary.bos, "eos_token_id": self.vocabulary.eos}
        _write_json(directory / "config.json", {**self.config, **ends, "dtype": self.dtype})
        _write_json(directory / "generation_config.json", ends)
        self.vocabulary.write(directory, self.config["max_position_embeddings"])
        self._write_safetensors(directory / WEIGHTS)
        gguf = GgufWriter(directory / GGUF, self.name, self.config, self.vocabulary, self.dtype)
        for name, weights in self.weights.items():
            gguf.add(name, weights)
        gguf.finish()
        hashed = (WEIGHTS, GGUF, "config.json", "tokenizer.json")
        manifest = Manifest(
            name=self.name,
            seed=self.seed,
            generator=generator,
            dtype=self.dtype,
            reserved_ids=tuple(sorted(self.vocabulary.control)),
            sha256={name: sha256_of(directory / name) for name in hashed},
        )
        _write_json(directory / MANIFEST, manifest.model_dump())

    def _write_safetensors(self, path: Path) -> None:
        """The format is a length, a JSON header and the data; its own writer cannot take bfloat16 from numpy."""
        kind, size = _SAFETENSORS_TYPES[self.dtype]
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name, weights in self.weights.items():
            end = offset + weights.size * size
            header[name] = {"dtype": kind, "shape": list(weights.shape), "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the data starts aligned
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for weights in self.weights.values():
                stored = weights if self.dtype == "bfloat16" else to_floats(weights)
                file.write(stored.tobytes())


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
