"""Fixtures for real engines on tiny models. A missing engine skips its tests, and fails them where CI is set."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from adapters.base import EngineSpec
from adapters.environments import python_for
from adapters.llama_cpp.launch import wheel_python
from adapters.registry import adapter_for
from checkpoints import Checkpoint
from checkpoints.make import ensure
from vocabulary.engine import Mode
from vocabulary.errors import EngineUnavailable

settings.register_profile("shared machine", deadline=None)  # absolute times say nothing here
settings.load_profile("shared machine")


@cache
def _python_of(name: str) -> Path:
    """The engine's interpreter: $HITPARITY_PYTHON_<ENGINE>, or the built environment's; EngineUnavailable otherwise.

    `name` is an engine, in its default version, or "engine@version".
    """
    engine, _, version = name.partition("@")
    variable = "HITPARITY_PYTHON_" + engine.upper().replace("-", "_").replace(".", "_")
    if given := os.environ.get(variable):
        return Path(given)
    if engine == "reference":
        if importlib.util.find_spec("torch") is None:
            raise EngineUnavailable("reference: torch is not installed; pip install 'hitparity[reference]'")
        return Path(sys.executable)
    adapter = adapter_for(engine)
    spec = EngineSpec(
        engine=engine,
        version=version or adapter.default_version,
        mode=adapter.modes[0],
        options=adapter.options(),
    )
    return wheel_python(spec)[0] if engine == "llama.cpp" else python_for(spec)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("live"):
        for engine in marker.args:
            try:
                _python_of(engine)
            except EngineUnavailable as error:
                if os.environ.get("CI"):
                    pytest.fail(f"required in CI: {error}", pytrace=False)
                pytest.skip(str(error))


@pytest.fixture(scope="session")
def engine_python() -> Callable[[str], Path]:
    """Engine name to the interpreter of its environment."""
    return _python_of


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[str], Checkpoint]:
    """Model name to its folder, built once in the user's cache."""
    return cache(ensure)


@pytest.fixture(scope="session")
def engine_spec() -> Callable[..., EngineSpec]:
    """`engine_spec("vllm", mode=Mode.WORKER, block_size=32)`: a spec on the engine's environment."""

    def make(
        engine: str,
        *,
        mode: Mode | None = None,
        dtype: str = "auto",
        law: str | None = None,
        port: int | None = None,
        **options: object,
    ) -> EngineSpec:
        adapter = adapter_for(engine)
        return EngineSpec(
            engine=engine,
            version=adapter.default_version,
            mode=mode or adapter.modes[0],
            dtype=dtype,
            law=law,
            port=port,
            options=adapter.options.model_validate(options),
            python=_python_of(engine) if engine not in ("law", "reference") else None,
        )

    return make
