"""Who computes a layer's token mixing: torch's own operators, or the kernels behind one interface.

Everything that the layers of a group share in one call is prepared once, as a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from reference_engine.call import AttentionRows
from reference_engine.kernels.delta import DeltaRows
from reference_engine.kernels.interface import BACKENDS, kernels_for
from reference_engine.kernels.shapes import StateBatch
from reference_engine.pools import KVPool
from reference_engine.rotary import Rotary
from vocabulary.errors import UsageError


class AttentionStep(ABC):
    """One call in an attention group."""

    @abstractmethod
    def rotate(self, rows: Tensor) -> Tensor:
        """Queries or keys `[n, heads, head_dim]` at the call's positions; may be the same memory, rotated."""

    @abstractmethod
    def write(self, keys: Tensor, values: Tensor, pool: KVPool, layer: int) -> None:
        """Store the rows' keys and values `[n, kv_heads, head_dim]`."""

    @abstractmethod
    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, pool: KVPool, layer: int, scale: float, window: int | None
    ) -> Tensor:
        """Attention of queries `[n, heads, head_dim]`, their own keys written before; `[n, heads * head_dim]`."""


class StateStep(ABC):
    """One call in a recurrent group."""

    @abstractmethod
    def conv(self, rows: Tensor, weight: Tensor, states: Tensor) -> Tensor:
        """As `Kernels.conv1d`."""

    @abstractmethod
    def delta(self, operands: DeltaRows) -> Tensor:
        """The gated delta rule, `[n, value_heads, value_dim]`; stores the states the call asks for."""


class Backend(ABC):
    """Makes steps."""

    @abstractmethod
    def attention(self, rows: AttentionRows, positions: Tensor, rotary: Rotary, page: int) -> AttentionStep:
        """`page`: tokens per block of the group, where the law said it."""

    @abstractmethod
    def recurrence(self, batch: StateBatch) -> StateStep:
        """Recurrent layers of one call."""


NAMES = ("fused", *BACKENDS)


def make_backend(name: str, device: torch.device) -> Backend:
    """`fused`: torch's operators, fast on a CPU; else the kernels of that name. UsageError for an unknown one,
    KernelDoesNotCover where kernels and device do not go together.
    """
    from reference_engine.fused import FusedBackend
    from reference_engine.kernel_backend import KernelBackend

    if name not in NAMES:
        raise UsageError(f"reference engine: backend {name!r} is unknown; use one of {', '.join(NAMES)}")
    return FusedBackend() if name == "fused" else KernelBackend(kernels_for(name, device))
