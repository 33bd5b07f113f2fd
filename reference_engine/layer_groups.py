"""Which layer group of the law keeps which layer of the model, and the pools that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from reference_engine.config import ModelConfig
from reference_engine.laws.memory import Room
from reference_engine.pools import KVPool, Pool, StatePool
from vocabulary.errors import UsageError
from vocabulary.groups import Kind, LayerGroup


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where one layer of the model keeps what it keeps."""

    group: int
    """Index of the law's group."""
    layer: int
    """Index inside that group's pool."""
    page: int = 1
    """Tokens per block, where the group says it."""


def assign(config: ModelConfig, groups: Sequence[LayerGroup]) -> tuple[LayerPlace, ...]:
    """The place of each layer. Several groups of one kind share its layers in contiguous runs, the first ones longer.

    Raises UsageError where the groups' kinds, windows or number do not fit the model.
    """
    layers = {kind: [at for at, each in enumerate(config.layer_kinds) if each is kind] for kind in Kind}
    asked = Counter(group.kind for group in groups)
    fits = all(asked[kind] <= len(own) and (asked[kind] > 0) is bool(own) for kind, own in layers.items())
    if not fits or any(group.window != config.window for group in groups if group.kind is Kind.SWA):
        counts = ", ".join(f"{len(own)} {kind}" for kind, own in layers.items() if own)
        raise UsageError(
            f"groups {[str(group) for group in groups]} do not fit the {config.model_type} model, whose layers are "
            f"{counts}; name them {list(config.groups)}, with any block sizes, or several groups of a kind"
        )
    places: dict[int, LayerPlace] = {}
    runs = {kind: iter(np.array_split(own, asked[kind])) for kind, own in layers.items() if own}
    for index, group in enumerate(groups):
        for layer, at in enumerate(next(runs[group.kind]).tolist()):
            places[at] = LayerPlace(index, layer, group.block or 1)
    return tuple(places[at] for at in range(config.layers))


def mtp_place(config: ModelConfig, places: Sequence[LayerPlace]) -> LayerPlace:
    """The drafting head's attention layer: one more in the first full group."""
    full = [place for place, kind in zip(places, config.layer_kinds, strict=True) if kind is Kind.FULL]
    first = min(full, key=lambda place: place.group)
    return LayerPlace(first.group, sum(place.group == first.group for place in full), first.page)


def make_pools(
    config: ModelConfig,
    places: Sequence[LayerPlace],
    rooms: Sequence[Room],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Pool, ...]:
    """One pool per room, in the compute type; `places` come from `assign` with the rooms' groups.

    Raises UsageError where the law does not say how large a room is.
    """
    layers = Counter(place.group for place in places)
    if config.mtp:
        layers[mtp_place(config, places).group] += 1
    return tuple(_pool(config, room, layers[index], dtype, device) for index, room in enumerate(rooms))


def _pool(config: ModelConfig, room: Room, layers: int, dtype: torch.dtype, device: torch.device) -> Pool:
    if room.slots is None:
        raise UsageError(f"reference engine: the law's options give group {room.group} no pool size; add one")
    if room.group.kind is not Kind.GDN:
        return KVPool(layers, room.slots, config.kv_heads, config.head_dim, dtype, device)
    sizes = config.delta
    assert sizes is not None
    conv = (sizes.conv_width - 1, sizes.channels)
    return StatePool(layers, room.slots, conv, (sizes.value_heads, sizes.key_dim, sizes.value_dim), dtype, device)
