"""What every adapter offers: option names checked, an engine started, and the modes it can be reached in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from checkpoints import Checkpoint
from vocabulary.engine import Engine, Mode
from vocabulary.errors import UsageError


class Options(BaseModel):
    """Base of an adapter's options: the engine's own names, unknown ones rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine configuration, as an experiment asks for it; options are already validated."""

    engine: str
    version: str
    mode: Mode
    device: str = "cpu"
    dtype: str = "auto"
    """"auto": the checkpoint's own."""
    options: Options
    port: int | None = None
    """`launch` mode: loopback port of the server; None: any free one."""
    law: str | None = None
    """Reference engine only: the law its cache managers follow."""
    python: Path | None = None
    """Interpreter of an existing environment, in place of one that hitparity builds."""
    binary: Path | None = None
    """Existing server executable (llama.cpp), in place of the prebuilt wheel."""
    url: str | None = None
    """`attach` mode: the server's base URL."""
    api_key_env: str | None = None
    """`attach` mode: name of the environment variable that holds the key; the key itself is never stored."""
    api_key_file: Path | None = None
    """`attach` mode: file that holds the key, in place of a variable; readable by its owner only."""
    start_timeout_s: float = 300.0
    request_timeout_s: float = 300.0
    stop_timeout_s: float = 20.0
    """How long the engine may take to end after SIGTERM before it is killed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Extra environment variables of the engine process."""


class Adapter(ABC):
    """One engine's entry in `adapters.registry`."""

    name: ClassVar[str]
    modes: ClassVar[tuple[Mode, ...]]
    """Supported modes, the default first."""
    default_version: ClassVar[str]
    """Version that the pinned requirements install."""
    options: ClassVar[type[Options]]

    def check(self, spec: EngineSpec) -> None:
        """Refuse, before anything starts, a configuration that cannot work; raises UsageError."""
        if spec.law is not None:
            known = '"law" and "reference"; a real engine has the law of its version and options'
            raise UsageError(f"engine {spec.engine!r}: key 'law' belongs to {known}")

    @abstractmethod
    def start(self, spec: EngineSpec, model: Checkpoint, folder: Path) -> Engine:
        """Start the engine on `model` and return it ready for requests.

        `folder` exists and takes the engine's log (`engine.log`) and scratch files. Raises
        EngineUnavailable with the reason and the end of the log when it does not come up; nothing
        is left running then.
        """

    @abstractmethod
    def law_for(
        self, spec: EngineSpec, facts_options: Mapping[str, Any], groups: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]]:
        """Name the law, with its options, that covers this configuration; raise LawDoesNotCover otherwise."""
