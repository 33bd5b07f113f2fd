"""A model folder on disk, opened and checked.

DIR/config.json, model.safetensors, tokenizer.json, ...   HF checkpoint (vLLM, SGLang, reference engine)
DIR/model.gguf                                            the same weights for llama.cpp
DIR/hitparity.json                                        name, seed, dtype, SHA-256 of both weight files
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabulary.errors import UsageError

MANIFEST = "hitparity.json"
WEIGHTS = "model.safetensors"
GGUF = "model.gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One model folder whose files are present and are those its manifest was written with."""

    name: str
    directory: Path
    architecture: str
    """`model_type` of config.json: "qwen3", "llama", "gemma3_text", "qwen3_5_text"."""
    dtype: str
    """Type of the weights: "float32" or "bfloat16"."""
    vocab_size: int
    context_len: int
    reserved_ids: frozenset[int]
    """IDs a workload must not draw: begin and end of text."""
    fingerprint: str
    """SHA-256 over the manifest's hashes: equal fingerprints mean equal weights in both formats."""

    @property
    def gguf(self) -> Path:
        """The GGUF beside the HF checkpoint."""
        return self.directory / GGUF

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Read a folder written by `hitparity model make` and verify both weight files.

        Raises UsageError when a file is missing or differs from the manifest: engines would then
        compare different models.
        """
        manifest = _read_json(directory / MANIFEST, "write the folder with `hitparity model make NAME DIR`")
        config = _read_json(directory / "config.json", "the HF checkpoint is incomplete; make it again")
        for name, expected in manifest["sha256"].items():
            path = directory / name
            if not path.is_file():
                raise UsageError(f"{path}: missing; make the model folder again with `hitparity model make`")
            if (actual := sha256_of(path)) != expected:
                raise UsageError(
                    f"{path}: holds other weights than {directory / MANIFEST} was written with "
                    f"(SHA-256 {actual[:12]}, expected {expected[:12]}); engines would run different models. "
                    f"Make the folder again with `hitparity model make`"
                )
        digest = hashlib.sha256(json.dumps(manifest["sha256"], sort_keys=True).encode())
        return cls(
            name=manifest["name"],
            directory=directory,
            architecture=config["model_type"],
            dtype=manifest["dtype"],
            vocab_size=config["vocab_size"],
            context_len=config["max_position_embeddings"],
            reserved_ids=frozenset(manifest["reserved_ids"]),
            fingerprint=digest.hexdigest(),
        )


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: not found; {remedy}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); {remedy}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object; {remedy}")
    return value
