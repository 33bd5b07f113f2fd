"""Proof 3: every kernel lowers for Ascend 910B3 and 910_9392 (A2, A3), and what comes out keeps the limits below.

Triton -> linalg by triton-ascend 3.2.0, linalg -> HIVM (cores split, on-chip memory planned, synchronised) by
ascendnpu-ir 1.2.0. The last stage, `hivmc`, is closed and ships with CANN only: `bishengir-compile` then ends with
"External hivmc run fails" after it has written its input for it. So the criterion is that message together with the
saved `module.hivm.opt.mlir`; any failure before (an overflow of on-chip memory, say) leaves no such file. Nothing
stands in for the missing compiler.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reference_engine.kernels.proofs.report import Check, run_checks
from reference_engine.kernels.proofs.specs import Spec, specs
from reference_engine.kernels.targets import ASCEND_A2

CHIPS = ("Ascend910B3", "Ascend910_9392")
MEMORY_KIB = {"ub": 192, "cbuf": 512, "cc": 128}
"""Unified buffer, L1 and L0C of one core of A2 and A3, by their names in HIVM (triton-ascend's documentation)."""
HANDED_OVER = "External hivmc run fails"
RETRIED = "Ub overflow detected"
SCALAR_LOOP = "ExtractedLoadOrStore"
ELEMENT_BYTES = {"i1": 1 / 8, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8}
OPTIONS = (
    "--enable-auto-multi-buffer=True",
    "--enable-auto-bind-sub-block=True",
    "--enable-hfusion-compile=true",
    "--enable-hivm-compile=true",
    "--enable-triton-kernel-compile=true",
)
"""What triton-ascend 3.2.0 passes (its backend/compiler.py)."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel as triton-ascend hands it to the Ascend compiler."""

    linalg: str
    kernel: str
    """Name of the function."""


def lower(kernel: Any, signature: dict[str, str], constants: dict[str, Any], chip: str) -> Lowered:
    """Triton -> linalg. Raises subprocess.CalledProcessError or the compiler's own exceptions."""
    from triton._C.libtriton import ir
    from triton.backends.ascend import compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = GPUTarget("npu", chip, 0)
    backend = compiler.AscendBackend(target)
    options = backend.parse_options({})
    source = ASTSource(kernel, signature, dict(constants))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {"hash": "none", "target": target, **options.__dict__}
    module = compiler.make_ttir(module, metadata, options)
    linalg = compiler.ttir_to_linalg(module, metadata, options, named_ops=True)
    return Lowered(linalg=linalg, kernel=kernel.__name__)


def tool(name: str) -> Path:
    """A program of the ascendnpu-ir wheel."""
    import ascendnpuir

    return Path(ascendnpuir.__file__).parent / "bin" / name


def examine(spec: Spec, chip: str) -> Check:
    """Lower and look."""
    from triton.backends.ascend import compiler

    lowered = lower(spec.kernel, spec.signature, dict(spec.constants), chip)
    linalg, _ = compiler._parse_linalg_metadata(lowered.linalg, {})
    with tempfile.TemporaryDirectory() as folder:
        source, saved = Path(folder) / "kernel.ttadapter.mlir", Path(folder) / "saved"
        source.write_text(linalg)
        run = subprocess.run(
            [
                tool("bishengir-compile"),
                source,
                f"--target={chip}",
                *OPTIONS,
                f"--save-temps={saved}",
                "-o",
                f"{folder}/k.o",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        said, hivm = run.stdout + run.stderr, saved / "module.hivm.opt.mlir"
        used = memory_kib(hivm.read_text()) if hivm.exists() else {}
    broken = []
    if HANDED_OVER not in said or not used:
        reason = re.search(r"error: [^\n]*|overflow[^\n]*", said)
        broken.append(f"did not reach the last stage: {reason.group() if reason else said[-300:]}")
    if RETRIED in said:
        broken.append("the unified buffer overflowed at first; the compiler dropped double buffering and went on")
    if loops := linalg.count(SCALAR_LOOP):
        broken.append(f"{loops} loads or stores became scalar loops")
    for memory, size in MEMORY_KIB.items():
        if used.get(memory, 0) > size:
            broken.append(f"{memory}: {used[memory]:.0f} of {size} KiB")
    measured: dict[str, float | int | str] = {f"{memory}_KiB": round(used.get(memory, 0), 1) for memory in MEMORY_KIB}
    return Check("ascend", f"{spec.name} | {chip}", tuple(broken), measured | {"scalar_loops": loops})


def memory_kib(hivm: str) -> dict[str, float]:
    """Highest byte used per on-chip memory, in KiB, from the planned addresses in HIVM."""
    highest: dict[str, float] = {}
    pattern = r"pointer_cast\(%c(\d+)_i64[^)]*\) : memref<((?:\d+x)*)(\w+)[^#]*#hivm.address_space<(\w+)>"
    for offset, dims, element, memory in re.findall(pattern, hivm):
        size = ELEMENT_BYTES[element]
        for dim in dims.split("x")[:-1]:
            size *= int(dim)
        highest[memory] = max(highest.get(memory, 0.0), (int(offset) + size) / 1024)
    return highest


def checks() -> Iterator[tuple[str, Callable[[], Check]]]:
    """Every kernel on every chip."""
    for spec in specs(ASCEND_A2):
        for chip in CHIPS:
            yield f"{spec.name} | {chip}", partial(examine, spec, chip)


def main() -> int:
    """`python -m reference_engine.kernels.proofs.ascend [--only TEXT]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="checks whose name contains this")
    return run_checks(checks(), parser.parse_args().only)


if __name__ == "__main__":
    sys.exit(main())
