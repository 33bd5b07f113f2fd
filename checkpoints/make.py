"""Make model folders: where the user says, or once in the user's cache folder."""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoints import smollm2, tiny
from checkpoints.folder import MANIFEST, Checkpoint
from checkpoints.model import Model
from vocabulary.cache import cache_dir, exclusive
from vocabulary.errors import UsageError

GENERATOR = 1
"""Raised whenever the same name and seed give other bytes; part of every cached folder's name."""

NAMES = (*tiny.CONFIGS, smollm2.NAME)


def make(name: str, directory: Path, *, seed: int = 0) -> Checkpoint:
    """Write one model folder and open it; the same name and seed give the same bytes.

    A folder written by an earlier `make` is replaced file by file, any other that is not empty is left
    alone. UsageError: unknown name, a seed that does not apply, a folder in the way or not writable.
    """
    model = _build(name, seed)
    try:
        with _scratch_beside(directory) as scratch:
            model.write(scratch, GENERATOR)
            _publish(scratch, directory)
    except OSError as error:
        raise UsageError(f"{directory}: cannot write the model folder ({error}); choose another place") from error
    return Checkpoint.open(directory)


def ensure(name: str, *, seed: int = 0) -> Checkpoint:
    """The model from the user's cache folder, made there on first use.

    Safe when several processes ask at once: one makes it, the others wait. A folder there is always whole.
    """
    _check(name, seed)
    key = hashlib.sha256(json.dumps([GENERATOR, seed]).encode()).hexdigest()[:8]
    directory = cache_dir() / "models" / f"{name}-{key}"
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(directory.with_name(f"{directory.name}.lock"), _say):
            if not directory.exists():
                for left_over in directory.parent.glob(f".{directory.name}.*"):  # of a build that was killed
                    shutil.rmtree(left_over)
                return make(name, directory, seed=seed)
    except OSError as error:
        raise UsageError(
            f"{directory.parent}: cannot be used ({error}); set HITPARITY_CACHE to another folder"
        ) from error
    try:
        return Checkpoint.open(directory)
    except UsageError as error:
        raise UsageError(f"{error}. It is a cached model: delete {directory} and it is made anew") from None


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _build(name: str, seed: int) -> Model:
    _check(name, seed)
    return smollm2.build() if name == smollm2.NAME else tiny.build(name, seed)


def _check(name: str, seed: int) -> None:
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(NAMES)}"
        raise UsageError(f"unknown model {name!r}; {hint}")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; give 0 or more")
    if name == smollm2.NAME and seed:
        raise UsageError(f"{name} has trained weights, seed {seed} cannot apply; leave the seed out")


@contextmanager
def _scratch_beside(directory: Path) -> Iterator[Path]:
    """A folder on the same file system as `directory`, so that it can be renamed; gone afterwards."""
    scratch = directory.absolute().with_name(f".{directory.absolute().name}.{uuid.uuid4().hex}")
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(built: Path, directory: Path) -> None:
    if not directory.exists() or not any(directory.iterdir()):
        built.rename(directory)
        return
    if not (directory / MANIFEST).is_file():
        raise UsageError(f"{directory}: not empty and not written by hitparity; choose an empty or new folder")
    # the manifest comes last: until then the old one disagrees with the weights and nobody opens the folder
    for path in sorted(built.iterdir(), key=lambda path: path.name == MANIFEST):
        path.replace(directory / path.name)
