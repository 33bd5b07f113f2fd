"""How a Triton kernel is started: on a device, in the interpreter, or handed to a proof instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from reference_engine.kernels.shapes import require
from reference_engine.kernels.targets import Target

Arguments = Mapping[str, Tensor | int | float]
Constants = Mapping[str, int | bool | str]


class Launch(Protocol):
    """Starts a kernel of `source/`."""

    def __call__(
        self, kernel: Any, programs: int, arguments: Arguments, constants: Constants, *, warps: int, stages: int
    ) -> None:
        """`programs`: the one-dimensional grid; `constants`: the kernel's `tl.constexpr` parameters."""


def launch_triton(
    kernel: Any, programs: int, arguments: Arguments, constants: Constants, *, warps: int, stages: int
) -> None:
    """Through Triton's own launcher; with TRITON_INTERPRET=1 set at import, in its interpreter."""
    kernel[(programs,)](**arguments, **constants, num_warps=warps, num_stages=stages)


def programs_for(target: Target, tasks: int, *, matrix: bool) -> int:
    """The grid for a number of tasks; `matrix`: the kernel multiplies matrices."""
    most = target.matrix_programs if matrix else target.vector_programs
    require(tasks < 2**31, f"{target.name}: {tasks} tasks do not fit a grid")
    return tasks if most is None else min(tasks, most)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << (number - 1).bit_length()
