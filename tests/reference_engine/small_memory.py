"""Decoders over a memory without a law: one sequence, whose slots are its positions, and a few state slots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from reference_engine.attention import extend_mask
from reference_engine.backend import Backend
from reference_engine.call import AttentionRows, Call, Extend, StateRows
from reference_engine.compute import resolve_compute
from reference_engine.config import ModelConfig
from reference_engine.kernels.shapes import StateBatch, StateSequence
from reference_engine.laws.memory import Room
from reference_engine.layer_groups import assign, make_pools
from reference_engine.model import Decoder
from reference_engine.weights import load_weights
from vocabulary.groups import Kind, parse_groups

CPU = torch.device("cpu")
SLOTS, STATES = 1024, 8
LIVE = 0
"""State slot that every call continues from and leaves its end in."""


class Sequential:
    """A decoder and the calls of its one sequence."""

    def __init__(
        self, directory: Path, backend: str | Backend = "fused", groups: Sequence[str] | None = None, slots: int = SLOTS
    ) -> None:
        torch.set_num_threads(1)  # a second one waits more than it helps at these sizes
        self.config = ModelConfig.read(directory)
        self.groups = parse_groups(groups or self.config.groups)
        types, places = resolve_compute("float32", "auto", "float32", CPU), assign(self.config, self.groups)
        rooms = [Room(group, STATES if group.kind is Kind.GDN else slots) for group in self.groups]
        pools = make_pools(self.config, places, rooms, torch.float32, CPU)
        self.decoder = Decoder(self.config, load_weights(directory, self.config, types, CPU), pools, places, backend)

    def call(self, ids: Sequence[int], start: int, *, read: int = LIVE, keep: Sequence[tuple[int, int]] = ()) -> Call:
        """Rows `ids` at positions from `start` on; `keep`: (position, slot) of states to store on the way."""
        end = start + len(ids)
        return Call(
            ids=torch.tensor(ids),
            positions=torch.arange(start, end),
            groups=tuple(
                self._states(start, end, read, keep)
                if group.kind is Kind.GDN
                else self._attention(start, end, group.window)
                for group in self.groups
            ),
            ends=(len(ids),),
        )

    def run(self, ids: Sequence[int], cuts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of every row of a prompt, computed in calls that end at `cuts`."""
        starts = [0, *cuts[:-1]]
        made = [self.decoder.forward_all(self.call(ids[a:b], a)) for a, b in zip(starts, cuts, strict=True)]
        return torch.cat([logits for logits, _ in made]), torch.cat([hidden for _, hidden in made])

    @staticmethod
    def _states(start: int, end: int, read: int, keep: Sequence[tuple[int, int]]) -> StateRows:
        stores = (*((at - start, slot) for at, slot in keep), (end - start, LIVE))
        sequence = StateSequence(0, end - start, start, read if start else None, stores)
        return StateRows(StateBatch.of([sequence], CPU))

    @staticmethod
    def _attention(start: int, end: int, window: int | None) -> AttentionRows:
        first = 0 if window is None else max(0, start - window + 1)
        mask = extend_mask(start, end, torch.float32, CPU, first_key=first, window=window)
        rows = Extend(slice(0, end - start), start, first, slice(first, end), mask)
        return AttentionRows(slice(start, end), (rows,))
