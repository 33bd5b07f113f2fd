"""The drafting head of Qwen3-Next and Qwen3.5: one attention layer that guesses the token after next.

Position p joins the model's hidden state there with the embedding of token p + 1 (known, or just chosen) and predicts
token p + 2. Source: vLLM 0.32.0, models/qwen3_next_mtp.py and qwen3_5_mtp.py; its hidden states are those behind the
model's last norm, and its own output, behind its own norm, takes their place when more than one token is drafted.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

from reference_engine.backend import AttentionStep
from reference_engine.block import Block
from reference_engine.config import ModelConfig
from reference_engine.layer_groups import LayerPlace
from reference_engine.pools import Pool
from reference_engine.weights import MtpWeights
from vocabulary.groups import Kind


class MtpHead:
    """The head with its layer of the first full group's pool."""

    def __init__(self, config: ModelConfig, weights: MtpWeights, place: LayerPlace, pool: Pool) -> None:
        self.config, self.weights, self.group = config, weights, place.group
        self._block = Block(config, weights.layer, Kind.FULL, place, pool)

    def __call__(self, embeddings: Tensor, hidden: Tensor, step: AttentionStep) -> Tensor:
        """Embeddings of the next tokens and hidden states, both `[n, hidden]`, to hidden states `[n, hidden]`."""
        joined = [
            self._norm(embeddings, self.weights.embedding_norm),
            self._norm(hidden, self.weights.hidden_norm),
        ]
        made = self._block(self.weights.join(torch.cat(joined, dim=-1)), step)
        assert made is not None
        return self._norm(made, self.weights.norm)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, (self.config.hidden,), weight, self.config.norm_eps)
