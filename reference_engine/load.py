"""From a model folder and a configuration to a started engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from reference_engine.compute import ComputeType, resolve_compute, use_threads
from reference_engine.config import ModelConfig
from reference_engine.engine import ReferenceEngine
from reference_engine.laws.base import Law
from reference_engine.laws.memory import Room
from reference_engine.laws.registry import make_law
from reference_engine.layer_groups import assign, make_pools
from reference_engine.model import Decoder
from reference_engine.weights import load_weights
from vocabulary.errors import EngineUnavailable, UsageError
from vocabulary.groups import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How to run a model; every field has the meaning that the adapter's options document."""

    law: str
    law_options: Mapping[str, Any]
    """With the sizes of the pools, as the law names them."""
    pool_tokens: int = 16384
    """Token slots of attention groups where the law knows no limit."""
    pool_states: int = 256
    """State slots of recurrent groups where the law knows no limit."""
    backend: str = "fused"
    """Who computes attention and recurrence: `backend.NAMES`."""
    dtype: str = "auto"
    compute_dtype: str = "auto"
    device: str = "cpu"
    threads: int | None = None
    prefill_grid: int = 256
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 16
    num_speculative_tokens: int = 0
    """Tokens that the model's own head drafts per step, under laws that do not ask (`Law.drafts` of the others)."""
    trace_hand_over: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A started engine with what was resolved while starting it."""

    engine: ReferenceEngine
    types: ComputeType
    config: EngineConfig


def load_engine(directory: Path, config: EngineConfig) -> Loaded:
    """Load the model and run it once, so that the first request pays no start-up cost.

    Raises UsageError for a model, type or law that is not supported and EngineUnavailable for a device that is absent.
    """
    device = _device(config.device)
    use_threads(config.threads)
    model = ModelConfig.read(directory)
    types = resolve_compute(model.stored_dtype, config.dtype, config.compute_dtype, device)
    law = make_law(config.law, config.law_options)
    rooms = _sized(law, config)
    places = assign(model, [room.group for room in rooms])
    drafts = _drafts(law, model, config)
    pools = make_pools(model, places, [_with_own(room, drafts) for room in rooms], types.compute, device)
    weights = load_weights(directory, model, types, device)
    engine = ReferenceEngine(
        Decoder(model, weights, pools, places, config.backend),
        law,
        rooms,
        prefill_grid=config.prefill_grid,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        drafts=drafts,
    )
    engine.trace_hand_over = config.trace_hand_over
    engine.runner.warm_up()
    return Loaded(engine, types, config)


def _sized(law: Law, config: EngineConfig) -> tuple[Room, ...]:
    """The law's rooms; those without a limit get that of the configuration."""
    if not law.rooms:
        raise UsageError(
            f"reference engine: law {config.law} with {dict(config.law_options)} only predicts; no engine follows it"
        )
    limits = {Kind.FULL: config.pool_tokens, Kind.SWA: config.pool_tokens, Kind.GDN: config.pool_states}
    return tuple(Room(room.group, room.slots or limits[room.group.kind]) for room in law.rooms)


def _drafts(law: Law, model: ModelConfig, config: EngineConfig) -> int:
    """Tokens that a step proposes: as the law has it, or where it does not care, as configured."""
    if config.num_speculative_tokens and not model.mtp:
        raise UsageError(
            f"reference engine: num_speculative_tokens = {config.num_speculative_tokens}, and this model has no head "
            f"that drafts; use a checkpoint with MTP layers"
        )
    return (law.drafts or config.num_speculative_tokens) if model.mtp else 0


def _with_own(room: Room, drafts: int) -> Room:
    """With what the runner keeps aside: the drafts' keys, or two states and those behind each draft."""
    assert room.slots is not None
    return Room(room.group, room.slots + drafts + (2 if room.group.kind is Kind.GDN else 0))


def _device(name: str) -> torch.device:
    if name.partition(":")[0] == "npu":
        try:
            import_module("torch_npu")  # makes the device known to torch
        except ImportError as error:
            raise EngineUnavailable(f"reference engine: torch_npu cannot be loaded ({error}); it needs CANN") from None
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"reference engine: device {name!r} is not a torch device; use cpu, cuda or npu") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineUnavailable("reference engine: device cuda was asked for, and torch sees no CUDA device here")
    if device.type not in ("cpu", "cuda", "npu"):
        raise UsageError(f"reference engine: device {name!r} is not supported; use cpu, cuda or npu")
    return device
