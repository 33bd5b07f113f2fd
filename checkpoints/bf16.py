"""bfloat16 as the upper 16 bits of a float32, which numpy lacks.

Every weight is held in this form, so that an engine computing in float32 and one computing in bfloat16
hold the same numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
"""bfloat16 values as their bit patterns."""
Floats = npt.NDArray[np.float32]


def to_bits(values: Floats) -> Bits:
    """Round finite float32 values to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_floats(bits: Bits) -> Floats:
    """The float32 values of bfloat16 bit patterns; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
