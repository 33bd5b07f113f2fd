"""The torch reference: properties that hold whatever computes, and what the operations refuse."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from adapters.registry import default_version
from adapters.requirements import requirements_for
from reference_engine.kernels.delta import DeltaRows, chunks_of
from reference_engine.kernels.interface import TorchKernels, TritonKernels, kernels_for
from reference_engine.kernels.proofs.specs import Recorder
from reference_engine.kernels.rotary import angle_tables
from reference_engine.kernels.shapes import (
    DecodeBatch,
    ExtendBatch,
    ExtendSequence,
    KernelDoesNotCover,
    LayerPool,
    StateBatch,
    StateSequence,
    index_tensor,
)
from reference_engine.kernels.targets import ASCEND_A2, CUDA_SM90
from vocabulary.errors import UsageError

CPU = torch.device("cpu")
KERNELS = TorchKernels()
PAGE, SCALE = 16, 0.125


def layer(tokens: int = 128, page: int = PAGE, dtype: torch.dtype = torch.float32) -> LayerPool:
    pool = torch.full((tokens, 2, 64), torch.nan, dtype=dtype)
    return LayerPool(keys=pool, values=pool.clone(), page=page)


def prompt(length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    packed = torch.randn(length, 8, 64)
    queries, keys, values = packed.split([4, 2, 2], dim=1)
    return queries, keys, values


def test_a_cold_prefill_is_torchs_attention() -> None:
    queries, keys, values = prompt(37)
    got = KERNELS.extend(
        queries, keys, values, layer(), ExtendBatch.of([ExtendSequence(0, 37, 0, ())], PAGE, CPU), SCALE, None
    )
    theirs = scaled_dot_product_attention(
        *(each.transpose(0, 1)[None] for each in (queries, keys, values)), is_causal=True, enable_gqa=True, scale=SCALE
    )
    torch.testing.assert_close(got, theirs[0].transpose(0, 1))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("hit", [1, 16, 36])
def test_a_hit_changes_nothing(hit: int, window: int | None) -> None:
    queries, keys, values = prompt(37)
    pool, table = layer(), (5, 1, 3)
    slots = index_tensor([table[at // PAGE] * PAGE + at % PAGE for at in range(37)], CPU)
    KERNELS.write(keys[:hit], values[:hit], pool, slots[:hit])
    cold = KERNELS.extend(
        queries, keys, values, pool, ExtendBatch.of([ExtendSequence(0, 37, 0, ())], PAGE, CPU), SCALE, window
    )
    rest = [each[hit:] for each in (queries, keys, values)]
    batch = ExtendBatch.of([ExtendSequence(0, 37 - hit, hit, table)], PAGE, CPU)
    torch.testing.assert_close(KERNELS.extend(*rest, pool, batch, SCALE, window), cold[hit:])
    KERNELS.write(keys[hit:], values[hit:], pool, slots[hit:])
    last = KERNELS.decode(queries[36:], pool, DecodeBatch.of([37], [table], PAGE, CPU), SCALE, window)
    torch.testing.assert_close(last, cold[36:])


def test_a_shift_is_a_rotation_at_another_position() -> None:
    frequencies = [10000.0 ** (-index / 16) for index in range(16)]
    rows = torch.randn(3, 2, 64, dtype=torch.float32)
    tables = angle_tables(frequencies, range(2000), CPU)
    moved, afresh = rows.clone(), rows.clone()
    KERNELS.rotate(moved, None, index_tensor([1500, 7, 40], CPU), *tables)
    KERNELS.rotate(moved, None, index_tensor([0, 0, 0], CPU), *angle_tables(frequencies, [-5], CPU))
    KERNELS.rotate(afresh, None, index_tensor([1495, 2, 35], CPU), *tables)
    torch.testing.assert_close(moved, afresh)
    assert torch.equal(moved[:, :, 32:], rows[:, :, 32:])


def operands(rows: int, states: int) -> DeltaRows:
    torch.manual_seed(0)
    unit = torch.nn.functional.normalize
    return DeltaRows(
        queries=unit(torch.randn(rows, 1, 32), dim=-1),
        keys=unit(torch.randn(rows, 1, 32), dim=-1),
        values=torch.randn(rows, 2, 16),
        gates=-torch.rand(rows, 2),
        betas=torch.rand(rows, 2),
        states=torch.full((states, 2, 32, 16), torch.nan),
    )


def test_a_restored_state_replays_the_rest() -> None:
    whole = operands(20, 3)
    cold = KERNELS.delta_token(whole, StateBatch.of([StateSequence(0, 20, 0, None, ((12, 1), (20, 0)))], CPU))
    warm = KERNELS.delta_token(whole.after(12), StateBatch.of([StateSequence(0, 8, 12, 1, ((8, 2),))], CPU))
    assert torch.equal(warm, cold[12:])
    assert torch.equal(whole.states[2], whole.states[0])


def test_conv1d_is_torchs_convolution_and_resumes() -> None:
    rows, weight = torch.randn(20, 8), torch.randn(4, 8)
    states = torch.full((3, 3, 8), torch.nan)
    cold = KERNELS.conv1d(rows, weight, states, StateBatch.of([StateSequence(0, 20, 0, None, ((2, 1), (20, 0)))], CPU))
    padded = torch.nn.functional.pad(rows.T[None], (3, 0))
    theirs = torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight.T[:, None], groups=8))[0].T
    torch.testing.assert_close(cold, theirs)
    warm = KERNELS.conv1d(rows[2:], weight, states, StateBatch.of([StateSequence(0, 18, 2, 1, ((18, 2),))], CPU))
    assert torch.equal(warm, cold[2:])
    assert torch.equal(states[2], states[0])


@pytest.mark.parametrize(
    "sequences",
    [
        [StateSequence(0, 4, 0, None, ((3, 0),))],  # the end is not stored
        [StateSequence(0, 4, 0, 1, ((2, 1), (4, 0)))],  # its own start is overwritten before the end
        [StateSequence(0, 4, 0, None, ((4, 0),)), StateSequence(4, 2, 0, 0, ((2, 1),))],  # read and stored by two
        [StateSequence(0, 4, 0, None, ((4, 0),)), StateSequence(4, 2, 0, None, ((2, 0),))],  # stored twice
        [StateSequence(1, 4, 0, None, ((4, 0),))],  # row 0 is nobody's
    ],
)
def test_states_that_would_collide_are_refused(sequences: list[StateSequence]) -> None:
    with pytest.raises(KernelDoesNotCover):
        StateBatch.of(sequences, CPU)


def test_a_state_off_the_chunk_grid_is_refused() -> None:
    batch = StateBatch.of([StateSequence(0, 40, 8, 0, ((24, 1), (40, 2)))], CPU)
    assert chunks_of(batch, 16).rows.tolist() == [8, 16, 16]
    batch = StateBatch.of([StateSequence(0, 40, 8, 0, ((23, 1), (40, 2)))], CPU)
    with pytest.raises(KernelDoesNotCover, match="position 31, off the grid of 16"):
        chunks_of(batch, 16)


def test_unsupported_shapes_are_refused_before_anything_is_launched() -> None:
    recorder = Recorder()
    ascend = TritonKernels(ASCEND_A2, recorder)
    queries, keys, values = prompt(5)
    batch = ExtendBatch.of([ExtendSequence(0, 5, 3, (0,))], 8, CPU)
    with pytest.raises(KernelDoesNotCover, match="page 8"):
        ascend.extend(queries, keys, values, layer(page=8), batch, SCALE, None)
    with pytest.raises(KernelDoesNotCover, match="head_dim 96"):
        LayerPool(keys=torch.zeros(16, 2, 96), values=torch.zeros(16, 2, 96), page=16)
    with pytest.raises(KernelDoesNotCover, match=r"expected torch\.float32"):
        ascend.extend(queries.half(), keys, values, layer(page=16), _batch(16), SCALE, None)
    with pytest.raises(KernelDoesNotCover, match="read and written"):
        ascend.copy_blocks(torch.zeros(1, 64, 2, 64), torch.zeros(1, 64, 2, 64), 16, [(0, 1), (1, 2)])
    assert not recorder.specs


def _batch(page: int) -> ExtendBatch:
    return ExtendBatch.of([ExtendSequence(0, 5, 3, (0,))], page, CPU)


def test_backends_are_chosen_by_name() -> None:
    assert isinstance(kernels_for("torch", CPU), TorchKernels)
    with pytest.raises(KernelDoesNotCover, match="use backend torch"):
        kernels_for("triton", CPU)
    with pytest.raises(UsageError, match="known: torch, triton, npu"):
        kernels_for("cuda", CPU)


def test_hits_on_the_grid_are_what_pages_allow() -> None:
    assert TritonKernels(CUDA_SM90).hit_grid(128, 16) == 64
    assert TritonKernels(ASCEND_A2).hit_grid(128, 16) == 16
    assert TritonKernels(ASCEND_A2).hit_grid(128, 528) == 16


def test_compilers_have_environments_of_their_own() -> None:
    ascend = requirements_for("kernels-ascend", default_version("kernels-ascend"), "cpu")
    assert ascend is not None and ascend.base is not None
    assert ascend.base.engine == "kernels-cuda" and ascend.base.version == default_version("kernels-cuda")
    with pytest.raises(UsageError, match="unknown engine"):
        default_version("kernels-rocm")
