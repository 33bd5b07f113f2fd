"""Proof 1: the kernels' source, interpreted by Triton on CPU tensors, computes what the torch reference computes.

Triton's interpreter (3.2, 3.6 and 3.9 alike) multiplies the bf16 operands of `tl.dot` as if their bits were integers;
`decode_bf16_operands` mends the interpreter, never the kernels. It runs programs one after another on raw pointers:
races and accesses out of bounds do not show.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

import torch

from reference_engine.kernels.interface import TritonKernels
from reference_engine.kernels.proofs.cases import Case, all_cases, equality
from reference_engine.kernels.proofs.report import Check, run_checks
from reference_engine.kernels.targets import ASCEND_A2, CUDA_SM90, Target, Tile

# Small tiles, because every element costs interpreter time; one program per task, and three programs that loop.
ONE_EACH = replace(
    CUDA_SM90,
    name="interpreter, one program per task",
    extend={head_dim: Tile(16, 64, 4, 1) for head_dim in CUDA_SM90.extend},
    delta_chunk=16,
    delta_chunk_columns=16,
)
THREE = replace(
    ASCEND_A2,
    name="interpreter, three programs",
    extend={head_dim: Tile(32, 32, 4, 1) for head_dim in ASCEND_A2.extend},
    vector_programs=3,
    matrix_programs=3,
    delta_chunk=16,
    delta_chunk_columns=16,
)


def decode_bf16_operands() -> None:
    """Let the interpreter's `tl.dot` see bf16 values instead of their bits."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    def values(handle: Any) -> Any:
        if handle.dtype.scalar is not tl.bfloat16 and handle.dtype.scalar != tl.bfloat16:
            return handle.data
        return (handle.data.astype(np.uint32) << 16).view(np.float32)

    stock = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if tl.bfloat16 not in (a.dtype.scalar, b.dtype.scalar):
            return stock(self, a, b, d, *rest)
        product = np.matmul(values(a), values(b), dtype=d.data.dtype) + d.data
        return interpreter.TensorHandle(product, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def checks(targets: tuple[Target, ...]) -> Iterator[tuple[str, Callable[[], Check]]]:
    """Every case on every target that covers its page size."""
    for target in targets:
        kernels = TritonKernels(target)
        for case in all_cases(torch.device("cpu"), matrix="full"):
            named = Case(f"{case.name} | {target.name}", case.run)
            yield named.name, partial(equality, "interpreter", named, kernels)


def main() -> int:
    """`python -m reference_engine.kernels.proofs.interpreter [--only TEXT]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="checks whose name contains this")
    decode_bf16_operands()
    torch.set_num_threads(1)
    return run_checks(checks((ONE_EACH, THREE)), parser.parse_args().only)


if __name__ == "__main__":
    sys.exit(main())
