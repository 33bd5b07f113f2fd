"""Proof 4: the Ascend-lowered code itself, executed on this CPU, computes what the torch reference computes.

It is the linalg code that `ascend.py` hands to the Ascend compiler.

linalg -> LLVM dialect by `bishengir-opt` (LLVM 19.1, ascendnpu-ir 1.2.0), -> object code by the LLVM inside
triton-ascend's library, -> linked by the system's C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reference_engine.kernels.interface import TritonKernels
from reference_engine.kernels.launch import Arguments, Constants
from reference_engine.kernels.proofs.ascend import lower, tool
from reference_engine.kernels.proofs.cases import all_cases, equality
from reference_engine.kernels.proofs.report import Check, run_checks
from reference_engine.kernels.proofs.specs import signature_of
from reference_engine.kernels.targets import ASCEND_A2
from vocabulary.errors import EngineUnavailable

CHIP = "Ascend910B3"
# With threads, bishengir-opt 1.2.0 crashes in bufferization in one run of ten (seen on the delta-rule kernels).
ONE_THREAD = "--mlir-disable-threading"
PASSES = (
    ("canonicalize", "convert-elementwise-to-linalg", "linalg-generalize-named-ops"),
    # A run of its own: in one run with the passes before, bishengir-opt 1.2.0 crashes in bufferization.
    (
        "one-shot-bufferize=allow-return-allocs-from-loops=true allow-unknown-ops=true copy-before-write=true",
        "convert-linalg-to-loops",
        "expand-strided-metadata",
        "lower-affine",
        "convert-scf-to-cf",
        "expand-strided-metadata",
        "lower-affine",
        "canonicalize",
        "arith-expand=include-bf16=true",
        "convert-math-to-llvm",
        "convert-math-to-libm",
        "convert-arith-to-llvm",
        "convert-index-to-llvm",
        "finalize-memref-to-llvm",
        "convert-func-to-llvm",
        "convert-cf-to-llvm",
        "reconcile-unrealized-casts",
    ),
)


class ExecuteLowered:
    """A launch that lowers the kernel for Ascend and runs the result on CPU tensors, program by program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._built: dict[tuple[object, ...], Any] = {}

    def __call__(
        self, kernel: Any, programs: int, arguments: Arguments, constants: Constants, *, warps: int, stages: int
    ) -> None:
        """As `Launch`; warps and stages mean nothing here."""
        signature = signature_of(kernel, arguments)
        key = (kernel.__name__, *signature.items(), *constants.items())
        if key not in self._built:
            self._built[key] = self._build(kernel, signature, constants, len(self._built))
        function = self._built[key]
        values = [_memref(None), _memref(None)]  # lock and workspace, unused by these kernels
        given = [arguments[name] for name in signature if name in arguments]
        values += [_memref(each) if isinstance(each, Tensor) else [_scalar(each)] for each in given]
        flat = [part for value in values for part in value]
        for program in range(programs):
            function(*flat, *(ctypes.c_int32(each) for each in (programs, 1, 1, program, 0, 0)))

    def _build(self, kernel: Any, signature: dict[str, str], constants: Constants, number: int) -> Any:
        lowered = lower(kernel, signature, dict(constants), CHIP)
        stem = self.folder / f"{lowered.kernel}-{number}"
        current = stem.with_suffix(".0.mlir")
        current.write_text(lowered.linalg)
        for step, passes in enumerate(PASSES, start=1):
            done = stem.with_suffix(f".{step}.mlir")
            flags = ["--allow-unregistered-dialect", ONE_THREAD, *(f"--{each}" for each in passes)]
            _run([tool("bishengir-opt"), current, *flags, "-o", done])
            current = done
        code, library = stem.with_suffix(".o"), stem.with_suffix(".so")
        code.write_bytes(_object_code(current))
        _run([_compiler(), "-shared", "-o", library, code, _runtime(self.folder), "-lm"])
        function = getattr(ctypes.CDLL(str(library)), lowered.kernel)
        function.restype = None
        return function


def _object_code(module: Path) -> bytes:
    """x86-64 or Arm object code of a file in the LLVM dialect."""
    import platform

    from triton._C.libtriton import ir, llvm

    context = ir.context()
    ir.load_dialects(context)
    parsed = ir.parse_mlir_module(str(module), context)
    parsed.context = context
    llvm.init_targets()
    translated = llvm.to_module(parsed, llvm.context())
    llvm.optimize_module(translated, llvm.OPTIMIZE_O2)
    code: bytes = llvm.translate_to_asm(
        str(translated), f"{platform.machine()}-unknown-linux-gnu", "", "", [], False, True
    )
    return code


def _memref(tensor: Tensor | None) -> list[Any]:
    """A one-dimensional memref as MLIR's C interface expands it: allocated, aligned, offset, size, stride."""
    pointer = ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
    size = 0 if tensor is None else tensor.untyped_storage().nbytes() // tensor.element_size()
    return [pointer, pointer, ctypes.c_int64(0), ctypes.c_int64(size), ctypes.c_int64(1)]


def _scalar(value: int | float) -> Any:
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int32(value)


@cache
def _runtime(folder: Path) -> Path:
    built = folder / "memref.o"
    _run([_compiler(), "-O2", "-fPIC", "-c", Path(__file__).parent / "memref.c", "-o", built])
    return built


@cache
def _compiler() -> str:
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return found
    raise EngineUnavailable("kernels-ascend: no C compiler (cc, gcc, clang) to link with; Debian: apt install gcc")


def _run(command: list[Any]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed ({done.returncode}): {done.stderr[:1500]}")


def checks(folder: Path) -> Iterator[tuple[str, Callable[[], Check]]]:
    """Every case, by seven programs that loop."""
    target = replace(ASCEND_A2, vector_programs=7, matrix_programs=5, delta_chunk=16, delta_chunk_columns=16)
    kernels = TritonKernels(target, ExecuteLowered(folder))
    for case in all_cases(torch.device("cpu"), matrix="part"):
        yield case.name, partial(equality, "lowered", case, kernels)


def main() -> int:
    """`python -m reference_engine.kernels.proofs.lowered [--only TEXT]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="checks whose name contains this")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return run_checks(checks(Path(folder)), parser.parse_args().only)


if __name__ == "__main__":
    sys.exit(main())
