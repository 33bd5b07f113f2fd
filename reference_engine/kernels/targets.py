"""What differs between devices: tiles, grid and precision, as data. The kernels' source is the same.

Sources: tiles of `cuda-sm90` were chosen by compiling (Triton 3.6.0): at least 64 query rows, below which the compiler
emits no warp-group matrix instruction, and no spill; chunks of 64 spill in the delta rule, chunks of 32 do not. Tiles
of `ascend-a2` by lowering (triton-ascend 3.2.0, ascendnpu-ir 1.2.0): 64 query rows by 64 keys fit the 192 KiB of
unified buffer, 128 rows do not. Neither was timed.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.kernels.shapes import require


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel with matrix products is cut."""

    rows: int
    """Query rows of a tile: positions times the heads that share a KV head."""
    keys: int
    """Keys taken per step; a hit that is a multiple of it is bit-equal to a cold run."""
    warps: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One kind of device."""

    name: str
    extend: dict[int, Tile]
    """By head_dim."""
    decode: dict[int, Tile]
    decode_span: int
    """Keys of one split. A length, not a count, so that a sequence's result does not depend on what runs beside it."""
    gather_pages: bool
    """Whether one step may span several pages. Ascend turns a gather of page numbers into scalar loads."""
    vector_programs: int | None
    """Programs of a kernel without matrix products; None: one per task. Ascend wants one per core."""
    matrix_programs: int | None
    copy_elements: int
    """Elements moved per step of a copy."""
    conv_tile: tuple[int, int]
    """(rows, channels)."""
    delta_columns: int
    """Value columns of a state tile in the token form."""
    delta_chunk: int
    delta_chunk_columns: int
    solve_precision: str
    """Triton's `input_precision` of the products that invert a chunk's matrix; errors there are amplified."""
    state_precision: str
    """The same of the products with the state: tf32 keeps more bits than the bf16 operands of a model have."""

    def keys_per_step(self, tile: Tile, page: int) -> int:
        """Keys per step at a page size. Raises KernelDoesNotCover where a step would have to gather and may not."""
        if self.gather_pages or page % tile.keys == 0:
            return tile.keys
        dividing = [keys for keys in (64, 32, 16) if keys <= tile.keys and page % keys == 0]
        require(bool(dividing), f"{self.name}: page {page} is no multiple of 16; a step must stay within one page")
        return dividing[0]


CUDA_SM90 = Target(
    name="cuda-sm90",
    extend={
        16: Tile(64, 64, 4, 2),
        32: Tile(64, 64, 4, 2),
        64: Tile(128, 64, 8, 3),
        128: Tile(128, 64, 8, 3),
        256: Tile(64, 32, 8, 2),
    },
    decode={
        16: Tile(16, 64, 4, 3),
        32: Tile(16, 64, 4, 3),
        64: Tile(16, 64, 4, 3),
        128: Tile(16, 64, 4, 3),
        256: Tile(16, 32, 4, 3),
    },
    decode_span=512,
    gather_pages=True,
    vector_programs=None,
    matrix_programs=None,
    copy_elements=4096,
    conv_tile=(16, 128),
    delta_columns=32,
    delta_chunk=32,
    delta_chunk_columns=32,
    solve_precision="tf32x3",
    state_precision="tf32",
)

ASCEND_A2 = Target(
    name="ascend-a2",
    extend={
        16: Tile(64, 64, 4, 1),
        32: Tile(64, 64, 4, 1),
        64: Tile(64, 64, 4, 1),
        128: Tile(64, 64, 4, 1),
        256: Tile(32, 32, 4, 1),
    },
    decode={head_dim: Tile(16, 64, 4, 1) for head_dim in (16, 32, 64, 128, 256)},
    decode_span=512,
    gather_pages=False,
    vector_programs=40,  # cores of a 910B3; another number of programs is only slower
    matrix_programs=20,
    copy_elements=4096,
    conv_tile=(8, 256),
    delta_columns=32,
    delta_chunk=32,
    delta_chunk_columns=32,
    solve_precision="ieee",
    state_precision="ieee",
)
