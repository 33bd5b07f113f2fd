"""Model folders that every engine can load: one set of weights as an HF checkpoint and as a GGUF."""

from checkpoints.folder import Checkpoint

__all__ = ["Checkpoint"]
