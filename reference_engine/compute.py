"""Which number type weights have and which type they are multiplied in, decided once when a model is loaded.

A CPU without bf16 instructions multiplies bf16 through a scalar detour: torch 2.13 on an AVX2 machine reached 8 to
10 GFLOP/s in bf16 where fp32 reached 140. There "auto" keeps the bf16 values of the weights but holds and multiplies
them in fp32, and says so in `ComputeType.note`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from vocabulary.errors import UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names in /proc/cpuinfo: x86 `flags` and, the last, Arm `Features`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeType:
    """The resolved number types of one loaded model."""

    weights: torch.dtype
    """Precision of the weight values."""
    compute: torch.dtype
    """Type of matrix products, activations and KV."""
    note: str | None
    """A sentence for reports where the two differ by our own choice."""


def resolve_compute(stored: str, requested_dtype: str, requested_compute: str, device: torch.device) -> ComputeType:
    """Combine the checkpoint's type, `dtype` ("auto": the checkpoint's) and `compute_dtype` ("auto": what is fast).

    Raises UsageError for a type that is neither float32 nor bfloat16.
    """
    weights = _dtype("dtype", stored if requested_dtype == "auto" else requested_dtype)
    if requested_compute != "auto":
        return ComputeType(weights=weights, compute=_dtype("compute_dtype", requested_compute), note=None)
    if weights is torch.bfloat16 and device.type == "cpu" and not cpu_has_bf16():
        note = "bfloat16 weights computed in float32: this CPU has no bf16 instructions (compute_dtype = float32)"
        return ComputeType(weights=weights, compute=torch.float32, note=note)
    return ComputeType(weights=weights, compute=weights, note=None)


def cpu_has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU multiplies bf16 natively; false where the system does not say."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not BF16_CPU_FLAGS.isdisjoint(flags.split())


def use_threads(threads: int | None) -> None:
    """Give torch `threads`, or one thread per core that this process may use."""
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))


def _dtype(key: str, name: str) -> torch.dtype:
    if name not in DTYPES:
        raise UsageError(f"reference engine: {key} = {name!r} is not supported; use one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]
