"""Model folders: the same bytes every time, never half built, and never silently different weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from checkpoints import Checkpoint
from checkpoints.cli import app
from checkpoints.folder import sha256_of
from checkpoints.make import NAMES, ensure, make
from checkpoints.tiny import CONFIGS
from vocabulary.errors import UsageError

TINY = tuple(CONFIGS)

# First bytes of SHA-256 of model.safetensors, seed 0. Another value means another model under an old name:
# raise checkpoints.make.GENERATOR, then write the new one here.
WEIGHTS_OF_SEED_0 = {
    "tiny-qwen3": "eaa389df01e998e1",
    "tiny-llama": "a850a3fa7762c37d",
    "tiny-gemma3": "13a2f1c3bdc23f4c",
    "tiny-qwen3.5": "97ffe4f39d16ee70",
    "tiny-qwen3.5-mtp": "81d00ced579a57e0",
}


def _files(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in folder.iterdir()}


@pytest.mark.parametrize("name", TINY)
def test_same_seed_gives_the_same_bytes_on_every_machine(name: str, tmp_path: Path) -> None:
    first, second = make(name, tmp_path / "a"), make(name, tmp_path / "b")
    assert _files(first.directory) == _files(second.directory)
    assert first.fingerprint == second.fingerprint
    assert sha256_of(tmp_path / "a" / "model.safetensors")[:16] == WEIGHTS_OF_SEED_0[name]


@pytest.mark.parametrize("name", TINY)
def test_another_seed_gives_other_weights_in_both_files(name: str, tmp_path: Path) -> None:
    zero, one = _files(make(name, tmp_path / "0").directory), _files(make(name, tmp_path / "1", seed=1).directory)
    assert {file for file in zero if zero[file] != one[file]} == {"model.safetensors", "model.gguf", "hitparity.json"}


@pytest.mark.parametrize("name", TINY)
def test_float32_and_bfloat16_engines_hold_the_same_weights(name: str, tmp_path: Path) -> None:
    for tensor, values in load_file(make(name, tmp_path / "m").directory / "model.safetensors").items():
        assert values.dtype == np.float32, tensor
        assert not (values.view(np.uint32) & 0xFFFF).any(), tensor


def test_end_of_text_is_never_the_most_likely_token(tmp_path: Path) -> None:
    weights = load_file(make("tiny-llama", tmp_path / "m").directory / "model.safetensors")
    assert not weights["lm_head.weight"][[257, 258]].any()
    assert weights["lm_head.weight"][[256, 259]].all(axis=1).all()


def test_gguf_holds_what_llama_cpp_computes_with(tmp_path: Path) -> None:
    folder = make("tiny-qwen3.5", tmp_path / "m").directory
    hf = load_file(folder / "model.safetensors")
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(folder / "model.gguf").tensors}
    assert len(stored) == len(hf)
    np.testing.assert_array_equal(stored["output_norm.weight"], 1 + hf["model.norm.weight"])
    np.testing.assert_array_equal(stored["blk.0.ssm_norm.weight"], hf["model.layers.0.linear_attn.norm.weight"])
    np.testing.assert_allclose(stored["blk.0.ssm_a"], -np.exp(hf["model.layers.0.linear_attn.A_log"]), rtol=1e-6)


def test_open_catches_every_file_that_changes_the_model(tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.gguf", "config.json", "tokenizer.json"):
        folder = make("tiny-qwen3", tmp_path / name).directory
        raw = bytearray((folder / name).read_bytes())
        raw[-3] ^= 0x20
        (folder / name).write_bytes(raw)
        with pytest.raises(UsageError, match=name):
            Checkpoint.open(folder)
        (folder / name).unlink()
        with pytest.raises(UsageError, match=name):
            Checkpoint.open(folder)
        assert _files(make("tiny-qwen3", folder).directory)[name]  # made again over the broken one


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": 3}', '{"name": "x", "dtype": "float32", "sha256": {}}'])
def test_open_explains_a_broken_manifest(text: str, tmp_path: Path) -> None:
    folder = make("tiny-llama", tmp_path / "m").directory
    (folder / "hitparity.json").write_text(text)
    with pytest.raises(UsageError, match=r"hitparity\.json"):
        Checkpoint.open(folder)


def test_make_leaves_a_foreign_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(UsageError, match="not written by hitparity"):
        make("tiny-qwen3", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "mine"


def test_make_fills_an_empty_folder_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make("tiny-qwen3", tmp_path / "empty")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_make_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'tiny-qwen3'"):
        make("tiny-quen3", tmp_path / "m")
    with pytest.raises(UsageError, match="negative"):
        make("tiny-qwen3", tmp_path / "m", seed=-1)
    with pytest.raises(UsageError, match="seed 1 cannot apply"):
        make("smollm2-135m", tmp_path / "m", seed=1)
    (tmp_path / "file").touch()
    for inside_a_file in (tmp_path / "file" / "m", tmp_path / "file"):
        with pytest.raises(UsageError, match=str(inside_a_file)):
            make("tiny-qwen3", inside_a_file)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _python(code: str, cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"HITPARITY_CACHE": str(cache)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def test_processes_that_ask_at_once_share_one_folder(tmp_path: Path) -> None:
    code = (
        "from checkpoints.make import ensure; c = ensure('tiny-qwen3', seed=7);"
        "print(c.directory, c.gguf.stat().st_ino, c.fingerprint)"
    )
    asked = [_python(code, tmp_path) for _ in range(4)]
    answers = {process.communicate(timeout=300)[0] for process in asked}
    assert [process.returncode for process in asked] == [0] * 4
    assert len(answers) == 1  # one inode: it was built once
    assert len([path for path in (tmp_path / "models").iterdir() if path.is_dir()]) == 1


def test_a_build_that_was_killed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, checkpoints.gguf_file as g; from checkpoints.make import ensure;"
        "g.GgufWriter.finish = lambda self: os.kill(os.getpid(), 9); ensure('tiny-qwen3')"
    )
    assert _python(code, tmp_path).wait(timeout=300) == -9
    (left_over,) = [path for path in (tmp_path / "models").iterdir() if path.is_dir()]
    assert (left_over / "model.safetensors").is_file()
    monkeypatch.setenv("HITPARITY_CACHE", str(tmp_path))
    checkpoint = ensure("tiny-qwen3")
    assert checkpoint.gguf.is_file()
    assert not left_over.exists()
    assert ensure("tiny-qwen3") == checkpoint


def test_ensure_says_how_to_repair_a_cached_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HITPARITY_CACHE", str(tmp_path))
    checkpoint = ensure("tiny-qwen3")
    assert ensure("tiny-qwen3", seed=1).directory != checkpoint.directory
    checkpoint.gguf.write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=f"delete {checkpoint.directory}"):
        ensure("tiny-qwen3")
    monkeypatch.setenv("HITPARITY_CACHE", str(checkpoint.gguf))
    with pytest.raises(UsageError, match="HITPARITY_CACHE"):
        ensure("tiny-qwen3")


def test_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["list"]).stdout.split() == list(NAMES)
    made = runner.invoke(app, ["make", "tiny-llama", str(tmp_path / "m"), "--seed", "3"])
    assert made.exit_code == 0
    assert json.loads((tmp_path / "m" / "hitparity.json").read_text())["seed"] == 3
    assert runner.invoke(app, ["check", str(tmp_path / "m")]).stdout == made.stdout
    (tmp_path / "m" / "model.gguf").unlink()
    assert isinstance(runner.invoke(app, ["check", str(tmp_path / "m")]).exception, UsageError)
