"""The decoder: a model's layers over the pools of its layer groups, at absolute positions.

Knows token IDs, positions and slots; knows nothing of requests or of laws.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

from reference_engine.backend import AttentionStep, Backend, StateStep, make_backend
from reference_engine.block import Block
from reference_engine.call import AttentionRows, Call
from reference_engine.config import ModelConfig
from reference_engine.layer_groups import LayerPlace, mtp_place
from reference_engine.mtp import MtpHead
from reference_engine.pools import Pool
from reference_engine.rotary import Rotary
from reference_engine.weights import Weights
from vocabulary.groups import Kind


class Decoder:
    """A model with its pools; `places` from `layer_groups.assign`, `backend` one of `backend.NAMES` or made."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        pools: Sequence[Pool],
        places: Sequence[LayerPlace],
        backend: str | Backend = "fused",
    ) -> None:
        self.config, self.weights, self.pools, self.places = config, weights, tuple(pools), tuple(places)
        dtype, device = weights.embedding.dtype, weights.embedding.device
        self.backend = make_backend(backend, device) if isinstance(backend, str) else backend
        self.rotaries: dict[Kind, Rotary] = {
            kind: Rotary(config.rope_of(kind), config.context_len, dtype, device)
            for kind in (Kind.FULL, Kind.SWA)
            if kind in config.layer_kinds
        }
        """Angles of each kind of attention layer."""
        self._blocks = [
            Block(config, layer, kind, place, pools[place.group])
            for layer, kind, place in zip(weights.layers, config.layer_kinds, places, strict=True)
        ]
        self._kinds = {place.group: (kind, place.page) for kind, place in zip(config.layer_kinds, places, strict=True)}
        self._mtp: MtpHead | None = None
        if weights.mtp is not None:
            place = mtp_place(config, places)
            self._mtp = MtpHead(config, weights.mtp, place, pools[place.group])

    @torch.inference_mode()
    def forward(self, call: Call, *, want_logits: bool) -> Tensor | None:
        """Fill the pools for the call's rows; logits `[len(call.ends), vocab]` in fp32 of each request's last row."""
        hidden = self._layers(call, read=want_logits)
        return None if hidden is None else self._logits(self._norm(hidden[[end - 1 for end in call.ends]]))

    @torch.inference_mode()
    def hidden(self, call: Call) -> Tensor:
        """Fill the pools; hidden states `[n, hidden]` of every row, behind the last norm."""
        hidden = self._layers(call, read=True)
        assert hidden is not None
        return self._norm(hidden)

    @torch.inference_mode()
    def forward_all(self, call: Call) -> tuple[Tensor, Tensor]:
        """Fill the pools; logits `[n, vocab]` in fp32 and hidden states `[n, hidden]` of every row."""
        hidden = self.hidden(call)
        return self._logits(hidden), hidden

    @torch.inference_mode()
    def draft(self, call: Call, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Run the drafting head: `call.ids[i]` is the token after row i, `hidden` `[n, hidden]` the rows' states.

        Fills the head's layer at the rows' own slots. Logits `[len(call.ends), vocab]` in fp32 of the token after
        that, for each request's last row, and the head's hidden states `[n, hidden]`, to draft a further token from.
        """
        assert self._mtp is not None, "the model has no drafting head"
        step = self._step(call, self._mtp.group)
        assert isinstance(step, AttentionStep)
        hidden = self._mtp(self._embed(call.ids), hidden, step)
        return self._logits(hidden[[end - 1 for end in call.ends]]), hidden

    def _layers(self, call: Call, *, read: bool) -> Tensor | None:
        steps = [self._step(call, group) for group in range(len(call.groups))]
        hidden: Tensor | None = self._embed(call.ids)
        for block in self._blocks:
            assert hidden is not None
            # Nothing reads what the last layer would make of rows whose logits nobody wants.
            hidden = block(hidden, steps[block.group], read=read or block is not self._blocks[-1])
        return hidden

    def _step(self, call: Call, group: int) -> AttentionStep | StateStep:
        rows, (kind, page) = call.groups[group], self._kinds[group]
        if isinstance(rows, AttentionRows):
            return self.backend.attention(rows, call.positions, self.rotaries[kind], page)
        return self.backend.recurrence(rows.batch)

    def _embed(self, ids: Tensor) -> Tensor:
        rows, scale = F.embedding(ids, self.weights.embedding), self.config.embedding_scale
        return rows if scale is None else rows * torch.tensor(scale, dtype=rows.dtype, device=rows.device)

    def _norm(self, rows: Tensor) -> Tensor:
        return F.rms_norm(rows, (self.config.hidden,), self.weights.norm, self.config.norm_eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.weights.head(hidden).float()
