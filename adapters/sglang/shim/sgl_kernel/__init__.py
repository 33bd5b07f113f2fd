"""Stand-in for SGLang's compiled CPU kernels, enough to import SGLang 0.5.23 and run its torch paths.

The CPU build of sgl-kernel is not on the package index. SGLang imports names from it as soon as
SGLANG_USE_CPU_ENGINE=1 selects the CPU code paths, but for dense models on a CPU without AMX it calls none of
them: every fast path asks first for the operator `convert_weight_packed`, which is therefore *not*
declared here. What is called all the same raises and names itself; nothing computes a wrong number.

Runs inside SGLang's own Python, so it imports nothing of ours.
"""

from collections.abc import Callable
from typing import NoReturn

import torch

__version__ = "0.0.0+hitparity"

# Looked up in torch.ops when Qwen3-Next and Qwen3.5 are imported; without them SGLang loses the whole model file.
for _name in (
    "fused_gdn_gating_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_qkvzba_split_reshape_cat_cpu",
):
    torch.library.define(f"sgl_kernel::{_name}", "(Tensor x) -> Tensor")


def refuse(name: str) -> Callable[..., NoReturn]:
    """A function that raises NotImplementedError with `name` when it is called."""

    def missing(*_arguments: object, **_options: object) -> NoReturn:
        raise NotImplementedError(f"{name} needs SGLang's compiled CPU kernels, which are not on the package index")

    return missing


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.endswith("_cpu") or name == "build_tree_kernel_efficient":
        return refuse(f"sgl_kernel.{name}")
    raise AttributeError(name)
