"""A model folder on disk, opened and checked.

DIR/config.json, model.safetensors, tokenizer.json, ...   HF checkpoint (vLLM, SGLang, reference engine)
DIR/model.gguf                                            the same weights for llama.cpp
DIR/hitparity.json                                        name, seed, dtype, SHA-256 of the files
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpoints.headers import check_gguf, check_safetensors
from vocabulary.bounded import inside, parse_json, read_bytes
from vocabulary.errors import UsageError

MANIFEST = "hitparity.json"
WEIGHTS = "model.safetensors"
GGUF = "model.gguf"
CODE = frozenset((".py", ".so", ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".h5", ".joblib"))
"""Python, or formats that are read with pickle by some engine."""


class Manifest(BaseModel):
    """hitparity.json."""

    model_config = ConfigDict(frozen=True)

    name: str
    seed: int | None
    """None: trained weights."""
    generator: int = 0
    """`checkpoints.make.GENERATOR` of the code that wrote the folder."""
    dtype: Literal["float32", "bfloat16"]
    reserved_ids: tuple[int, ...]
    sha256: dict[str, str]
    """By file name: both weight files and what else decides what an engine computes."""


class _Config(BaseModel):
    """What is read here of config.json."""

    model_type: str
    vocab_size: int
    max_position_embeddings: int


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
        """Read a folder written by `hitparity model make` and verify its files.

        Raises UsageError when a file is missing or differs from the manifest: engines would then
        compare different models.
        """
        remedy = "write the folder with `hitparity model make NAME DIR`"
        manifest = _read(directory / MANIFEST, Manifest, remedy)
        for name in sorted({WEIGHTS, GGUF, *manifest.sha256}):
            path, expected = inside(directory, name), manifest.sha256.get(name, "no entry")
            try:
                actual = sha256_of(path)
            except OSError as error:
                raise UsageError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
            if actual != expected:
                raise UsageError(
                    f"{path}: is not the file that {directory / MANIFEST} was written with "
                    f"(SHA-256 {actual[:12]}, expected {expected[:12]}); engines would run different models. "
                    f"Make the folder again with `hitparity model make`"
                )
        _refuse_code(directory)
        check_safetensors(directory / WEIGHTS)
        check_gguf(directory / GGUF)
        config = _read(directory / "config.json", _Config, remedy)
        digest = hashlib.sha256(json.dumps(manifest.sha256, sort_keys=True).encode())
        return cls(
            name=manifest.name,
            directory=directory,
            architecture=config.model_type,
            dtype=manifest.dtype,
            vocab_size=config.vocab_size,
            context_len=config.max_position_embeddings,
            reserved_ids=frozenset(manifest.reserved_ids),
            fingerprint=digest.hexdigest(),
        )


def _refuse_code(directory: Path) -> None:
    """Nothing in a folder may be able to run: no engine is told to trust it, and none gets the chance to."""
    for path in sorted(directory.iterdir()):
        if path.suffix in CODE or path.is_symlink():
            what = "is a symbolic link" if path.is_symlink() else "could run code when it is loaded"
            raise UsageError(f"{path}: {what}; a model folder holds safetensors, GGUF, JSON and text only; remove it")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_Read = TypeVar("_Read", bound=BaseModel)


def _read(path: Path, kind: type[_Read], remedy: str) -> _Read:
    try:
        return kind.model_validate(parse_json(read_bytes(path), str(path)))
    except UsageError as error:
        raise UsageError(f"{error}; {remedy}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{path}: {where}: {first['msg']}; {remedy}") from None
