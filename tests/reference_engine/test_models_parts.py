"""The parts of the decoder on their own: places of layers, rotations, masks, the delta rule in chunks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from checkpoints import Checkpoint
from reference_engine.attention import extend_mask
from reference_engine.config import ModelConfig, Rope
from reference_engine.delta_rule import conv1d, gated_delta_rule
from reference_engine.kernels.conv1d import conv1d_reference
from reference_engine.kernels.delta import DeltaRows, delta_reference
from reference_engine.kernels.shapes import StateBatch, StateSequence
from reference_engine.laws.memory import Room
from reference_engine.layer_groups import LayerPlace, assign, make_pools, mtp_place
from reference_engine.rotary import Rotary, rotate
from vocabulary.errors import UsageError
from vocabulary.groups import parse_groups

CPU = torch.device("cpu")


def config_of(checkpoint: Callable[[str], Checkpoint], name: str) -> ModelConfig:
    return ModelConfig.read(checkpoint(name).directory)


def test_layers_go_to_the_groups_of_their_kind(checkpoint: Callable[[str], Checkpoint]) -> None:
    gemma, hybrid = config_of(checkpoint, "tiny-gemma3"), config_of(checkpoint, "tiny-qwen3.5-mtp")
    assert gemma.groups == ("full", "swa:128") and hybrid.groups == ("full", "gdn")
    assert assign(gemma, parse_groups(["swa:16:128", "full:16", "swa:16:128"])) == (
        *(LayerPlace(0, layer, 16) for layer in range(3)),
        *(LayerPlace(2, layer, 16) for layer in range(2)),
        LayerPlace(1, 0, 16),
    )
    places = assign(hybrid, parse_groups(hybrid.groups))
    assert mtp_place(hybrid, places) == LayerPlace(0, 1)
    rooms = [Room(group, 5) for group in parse_groups(hybrid.groups)]
    full, states = make_pools(hybrid, places, rooms, torch.float32, CPU)
    assert full.keys.shape == (2, 5, 1, 64) and states.delta.shape == (3, 5, 2, 64, 64)
    assert states.conv.shape == (3, 5, 3, 384)


@pytest.mark.parametrize(
    "groups",
    [("full",), ("full", "swa:64"), ("full", "swa:128", "gdn"), ("full", "full", "swa:128"), ("swa:128",)],
)
def test_groups_that_do_not_fit_are_refused_with_those_that_do(
    checkpoint: Callable[[str], Checkpoint], groups: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match=r"1 full, 5 swa; name them \['full', 'swa:128'\]"):
        assign(config_of(checkpoint, "tiny-gemma3"), parse_groups(groups))


@pytest.mark.parametrize("rope", [Rope(1e4, 64), Rope(1e7, 16), Rope(1e6, 64, 8.0)])
def test_a_turned_key_is_the_key_at_the_other_position(rope: Rope) -> None:
    rotary, keys = Rotary(rope, 4096, torch.float32, CPU), torch.randn(3, 2, 64)
    here, there = (rotate(keys, *rotary.at(torch.tensor(at))) for at in ([5, 900, 3000], [105, 1000, 3100]))
    torch.testing.assert_close(rotary.turned(here, 100), there, atol=2e-3, rtol=0)
    torch.testing.assert_close(rotary.turned(there, -100), here, atol=2e-3, rtol=0)
    assert not torch.allclose(rotary.turned(here, 99), there, atol=2e-2, rtol=0)
    assert torch.equal(here[..., rope.dims :], keys[..., rope.dims :])


@pytest.mark.parametrize(("start", "end", "first", "window"), [(0, 9, 0, 4), (5, 9, 2, 4), (8, 9, 5, 4), (3, 9, 1, 4)])
def test_the_mask_is_the_rule_of_the_window(start: int, end: int, first: int, window: int) -> None:
    mask = extend_mask(start, end, torch.float32, CPU, first_key=first, window=window)
    positions, keys = torch.arange(start, end)[:, None], torch.arange(first, end)[None]
    seen = (keys <= positions) & (keys > positions - window)
    if mask is None:
        assert bool(seen.all())
    else:
        assert torch.equal(mask == 0, seen) and bool(mask[~seen].isneginf().all())


@pytest.mark.parametrize("seed", range(6))
def test_the_chunked_delta_rule_is_the_token_by_token_one(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    counts = [[130], [1, 1, 1], [3, 70], [64], [2, 1, 200], [63, 65]][seed]
    sequences, row, slot = [], 0, 3
    for index, count in enumerate(counts):
        position = int(torch.randint(0, 200, (), generator=random))
        early = sorted({int(each) for each in torch.randint(1, count + 1, (3,), generator=random)} - {count})
        stores = [(done, slot + at) for at, done in enumerate(early)] + [(count, slot + len(early))]
        sequences.append(StateSequence(row, count, position, index if index % 2 == 0 else None, tuple(stores)))
        row, slot = row + count, slot + len(stores)
    batch = StateBatch.of(sequences, CPU)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    unit = torch.nn.functional.normalize
    keys, states, conv = unit(rows(row, 2, 16), dim=-1), rows(slot, 4, 16, 32), rows(slot, 3, 48)
    queries, values = unit(rows(row, 2, 16), dim=-1), rows(row, 4, 32)
    gates, betas = -torch.rand(row, 4, generator=random), torch.rand(row, 4, generator=random)
    inputs, weight = rows(row, 48), rows(4, 48)
    ours, theirs = states.clone(), states.clone()
    made = gated_delta_rule(DeltaRows(queries, keys, values, gates, betas, ours), batch)
    expected = delta_reference(DeltaRows(queries, keys, values, gates, betas, theirs), batch)
    torch.testing.assert_close(made, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)
    our_conv, their_conv = conv.clone(), conv.clone()
    torch.testing.assert_close(
        conv1d(inputs, weight, our_conv, batch), conv1d_reference(inputs, weight, their_conv, batch)
    )
    assert torch.equal(our_conv, their_conv)
