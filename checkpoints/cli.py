"""`hitparity model`: make, list and check model folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from checkpoints.folder import Checkpoint
from checkpoints.make import NAMES
from checkpoints.make import make as make_folder

app = typer.Typer(no_args_is_help=True, help="Model folders: the same weights for every engine.")


@app.command()
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(NAMES)}.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder, or one made earlier.")],
    seed: Annotated[int, typer.Option(help="Of the random weights; the same seed gives the same bytes.")] = 0,
) -> None:
    """Write a model as HF checkpoint with tokenizer and as GGUF."""
    _show(make_folder(name, directory, seed=seed))


@app.command("list")
def list_names() -> None:
    """Names that `make` and experiment files know."""
    for name in NAMES:
        typer.echo(name)


@app.command()
def check(directory: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Verify that a folder's files are those it was made with."""
    _show(Checkpoint.open(directory))


def _show(checkpoint: Checkpoint) -> None:
    typer.echo(
        f"{checkpoint.directory}: {checkpoint.name}, {checkpoint.architecture}, {checkpoint.dtype}, "
        f"vocabulary {checkpoint.vocab_size}, context {checkpoint.context_len}, "
        f"weights {checkpoint.fingerprint[:12]}"
    )
