"""TensorRT-LLM's lookup worker where the package is missing, and its plumbing against a stand-in for the package.

The stand-in knows one rule (whole blocks of one prompt); it shows that the script speaks the protocol and makes the
calls in the manager's interface, and nothing about the engine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adapters.lookup import open_lookup
from adapters.tensorrt_llm_lookup.lookup import INTERPRETER
from vocabulary.engine import Fidelity, TokenRequest
from vocabulary.errors import EngineUnavailable, LawDoesNotCover, UsageError

STAND_IN = """
from collections import namedtuple
ReuseScope = namedtuple("ReuseScope", "lora_id salt")
CudaStream = int
class Config:
    def __init__(self, **fields): self.__dict__.update(fields)
BufferConfig = SsmLayerConfig = AttentionLayerConfig = GpuCacheTierConfig = KVCacheManagerConfig = Config
class Cache:
    def __init__(self, manager, scope, tokens):
        self.manager, self.scope, self.tokens = manager, scope, []
        self.num_committed_tokens = manager.probe_reuse(scope, tokens)
        self.tokens = list(tokens[: self.num_committed_tokens])
    def resume(self, stream): return True
    def resize(self, capacity): return True
    def commit(self, tokens):
        self.tokens += tokens
        self.num_committed_tokens = len(self.tokens)
        self.manager.stored.setdefault(self.scope, []).append(tuple(self.tokens))
    def stop_committing(self): pass
    def close(self): pass
class KVCacheManager:
    def __init__(self, config): self.block, self.stored = config.tokens_per_block, {}
    def probe_reuse(self, scope, tokens):
        best = 0
        for seen in self.stored.get(scope, []):
            while tuple(tokens[: best + self.block]) == seen[: best + self.block] and best + self.block <= len(tokens):
                best += self.block
        return best
    def create_kv_cache(self, scope, tokens): return Cache(self, scope, tokens)
    def clear_reusable_blocks(self): self.stored.clear()
    def shutdown(self): pass
"""
TORCH = """
class cuda:
    @staticmethod
    def current_stream():
        class stream: cuda_stream = 0
        return stream
    @staticmethod
    def get_device_name(): return "stand-in"
"""


def test_without_an_interpreter_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INTERPRETER, raising=False)
    with pytest.raises(EngineUnavailable, match=f"set {INTERPRETER} to that environment's python"):
        open_lookup("tensorrt-llm@v2", {}, tmp_path)


def test_an_interpreter_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERPRETER, sys.executable)
    with pytest.raises(EngineUnavailable, match=r"needs tensorrt_llm, which .* does not have"):
        open_lookup("tensorrt-llm@v2", {}, tmp_path)


def test_refusals_come_before_any_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERPRETER, "/nowhere/python")
    with pytest.raises(UsageError, match="V1's probe counts whole blocks only"):
        open_lookup("tensorrt-llm@v1", {}, tmp_path)
    with pytest.raises(LawDoesNotCover, match="per_conversation"):
        open_lookup("tensorrt-llm@v2", {"policy": "per_conversation"}, tmp_path)
    with pytest.raises(EngineUnavailable, match="does not run"):
        open_lookup("tensorrt-llm@v2", {}, tmp_path)


def test_plumbing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "packages" / "tensorrt_llm" / "runtime"
    runtime.mkdir(parents=True)
    (runtime.parent / "__init__.py").write_text('__version__ = "stand-in"')
    (runtime / "__init__.py").touch()
    (runtime / "kv_cache_manager_v2.py").write_text(STAND_IN)
    (tmp_path / "packages" / "torch.py").write_text(TORCH)
    monkeypatch.setenv(INTERPRETER, sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    lookup = open_lookup("tensorrt-llm@v2", {"enable_partial_reuse": False}, tmp_path)
    try:
        assert (lookup.facts.version, lookup.facts.fidelity, lookup.facts.granule) == ("stand-in", Fidelity.LOOKUP, 32)
        asked = TokenRequest(request_id="r", ids=tuple(range(100)))
        salted = TokenRequest(request_id="s", ids=tuple(range(100)), namespace="salt")
        assert [lookup.send(each, [5]).hit_len for each in (asked, asked, salted)] == [0, 96, 0]
        again = lookup.send(asked, [5])
        assert (again.output_ids, again.position_start, again.native) == ((5,), None, {"probe_reuse": 96})
        assert lookup.reset() and lookup.send(asked).hit_len == 0
        lookup.reconfigure({"tokens_per_block": 64, "enable_partial_reuse": False, "max_num_tokens": 64})
        assert [lookup.send(asked).hit_len for _ in range(2)] == [0, 64]
    finally:
        lookup.close()
