"""Recurrent-layer kernels of sgl_kernel: importable, and each raises when it is called."""

from collections.abc import Callable
from typing import NoReturn

from . import refuse


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)
    return refuse(f"sgl_kernel.mamba.{name}")
