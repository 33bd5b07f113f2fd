"""`hitparity env`: build, list and remove engine environments."""

from __future__ import annotations

from typing import Annotated

import typer

from adapters import environments
from adapters.registry import default_version

app = typer.Typer(help="Engine environments: built once below the cache folder.", no_args_is_help=True)

Engine = Annotated[str, typer.Argument(help="Engine name, such as vllm; or kernels-cuda, kernels-ascend.")]
Version = Annotated[str | None, typer.Option(help="Engine version.")]


def _progress(line: str) -> None:
    typer.echo(line, err=True)


@app.command()
def create(
    engine: Engine,
    version: Version = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Build the environment of ENGINE, by default in the version that hitparity pins."""
    built = environments.create(engine, version or default_version(engine), device, _progress)
    typer.echo(f"{engine}: runs in hitparity's own interpreter, nothing to build" if built is None else built.python)


@app.command("list")
def list_() -> None:
    """List the environments with their size."""
    for env in environments.environments():
        state = f"{env.engine:18} {env.version:16} {env.device:5}" if env.complete else f"{'half-built':41}"
        typer.echo(f"{state} {env.size_bytes() / 1e6:8.0f} MB  {env.path}")


@app.command()
def remove(engine: Engine, version: Version = None) -> None:
    """Remove the environments of ENGINE, or only those of one version."""
    default_version(engine)  # raises for an unknown name
    for folder in environments.remove(engine, version, _progress):
        typer.echo(f"removed {folder}")
