"""Kinds of layer groups of a checkpoint, as llama.cpp keeps them in separate memories."""

from __future__ import annotations

import json

from checkpoints import Checkpoint
from vocabulary.errors import UsageError

KINDS = {"full_attention": "full", "sliding_attention": "swa", "linear_attention": "gdn"}


def groups_of(model: Checkpoint) -> tuple[str, ...]:
    """Such as ("full",), ("full", "swa:128") or ("full", "gdn"), from the checkpoint's config.json."""
    config = json.loads((model.directory / "config.json").read_text(encoding="utf-8"))
    layers = set(config.get("layer_types") or ["full_attention"])
    if unknown := sorted(layers - set(KINDS)):
        raise UsageError(f"{model.directory}/config.json: unknown layer type {unknown[0]!r}; known: {', '.join(KINDS)}")
    return tuple(
        f"swa:{config['sliding_window']}" if name == "swa" else name for kind, name in KINDS.items() if kind in layers
    )
