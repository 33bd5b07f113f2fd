"""Proof 2: every kernel compiles for sm_90 (Hopper), and the machine code keeps the limits below.

Triton compiles without a GPU and without a driver; registers, stack and instructions are read from the cubin with the
`cuobjdump` inside the Triton wheel.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from reference_engine.kernels.proofs.report import Check, run_checks
from reference_engine.kernels.proofs.specs import Spec, specs
from reference_engine.kernels.targets import CUDA_SM90

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that a block may use on sm_90 (CUDA programming guide, compute capability 9.0)."""


def compile_spec(spec: Spec) -> Any:
    """Triton's compiled kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = spec.kernel.arg_names
    source = ASTSource(
        spec.kernel,
        spec.signature,
        constexprs={(names.index(name),): value for name, value in spec.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in spec.aligned},
    )
    options = {"num_warps": spec.warps, "num_stages": spec.stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def examine(spec: Spec) -> Check:
    """Compile and look."""
    compiled = compile_spec(spec)
    usage, code = _dump(compiled.asm["cubin"], "--dump-resource-usage"), _dump(compiled.asm["cubin"], "--dump-sass")
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    registers, stack = map(int, found.groups())
    shared, wide, narrow = compiled.metadata.shared, code.count("HGMMA"), code.count("HMMA")
    broken = []
    if stack:
        broken.append(f"spills: {stack} bytes of stack")
    if shared > SHARED_LIMIT:
        broken.append(f"shared memory: {shared} of {SHARED_LIMIT} bytes")
    if spec.name.startswith("extend") and not wide:
        broken.append("attention without a warp-group matrix instruction (HGMMA)")
    if spec.name.startswith("decode") and not wide + narrow:
        broken.append("decode without a tensor-core instruction")
    measured = {"registers": registers, "stack": stack, "shared": shared, "HGMMA": wide, "HMMA": narrow}
    return Check("sm90", spec.name, tuple(broken), measured)


def _dump(cubin: bytes, what: str) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, what, file.name], capture_output=True, text=True, check=True).stdout


def checks() -> Iterator[tuple[str, Callable[[], Check]]]:
    """Every kernel."""
    for spec in specs(CUDA_SM90):
        yield spec.name, partial(examine, spec)


def main() -> int:
    """`python -m reference_engine.kernels.proofs.sm90 [--only TEXT]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="checks whose name contains this")
    return run_checks(checks(), parser.parse_args().only)


if __name__ == "__main__":
    sys.exit(main())
