"""What the reference engine does not implement, or cannot read, is refused with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import Checkpoint
from reference_engine.compute import cpu_has_bf16, resolve_compute
from reference_engine.config import ModelConfig
from reference_engine.weights import load_weights
from vocabulary.errors import UsageError

CPU = torch.device("cpu")


@pytest.fixture
def folder(checkpoint: Callable[[str], Checkpoint], tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint("tiny-qwen3").directory / name, tmp_path)
    return tmp_path


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "gemma2"}, "supported: llama, qwen3"),
        ({"model_type": "qwen3_next"}, "layers with experts = 2"),
        ({"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers = 2"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, "rope scaling = 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None}, "rope scaling = 'linear'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_a_config_beyond_the_decoder_is_refused(folder: Path, changes: dict[str, Any], why: str) -> None:
    edit(folder, **changes)
    with pytest.raises(UsageError, match=why):
        ModelConfig.read(folder)


def test_a_config_without_a_needed_key_names_it(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["rms_norm_eps"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="rms_norm_eps"):
        ModelConfig.read(folder)


def test_a_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hitparity model make"):
        ModelConfig.read(tmp_path / "absent")


def test_weights_that_do_not_match_the_config_are_refused(folder: Path) -> None:
    types = resolve_compute("float32", "auto", "auto", CPU)
    edit(folder, intermediate_size=128)
    with pytest.raises(UsageError, match=r"config\.json says"):
        load_weights(folder, ModelConfig.read(folder), types, CPU)
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != "model.norm.weight"}, folder / "model.safetensors")
    edit(folder, intermediate_size=256)
    with pytest.raises(UsageError, match=r"model\.norm\.weight is missing"):
        load_weights(folder, ModelConfig.read(folder), types, CPU)
    (folder / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(UsageError, match="cannot be read"):
        load_weights(folder, ModelConfig.read(folder), types, CPU)


def test_bf16_is_computed_in_fp32_only_where_the_cpu_lacks_it_and_never_silently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reference_engine.compute.cpu_has_bf16", lambda: False)
    lacking = resolve_compute("bfloat16", "auto", "auto", CPU)
    assert (lacking.weights, lacking.compute) == (torch.bfloat16, torch.float32)
    assert lacking.note is not None and "float32" in lacking.note
    assert resolve_compute("bfloat16", "auto", "bfloat16", CPU).compute is torch.bfloat16
    assert resolve_compute("float32", "auto", "auto", CPU).note is None
    monkeypatch.setattr("reference_engine.compute.cpu_has_bf16", lambda: True)
    native = resolve_compute("bfloat16", "auto", "auto", CPU)
    assert (native.compute, native.note) == (torch.bfloat16, None)
    with pytest.raises(UsageError, match="float16"):
        resolve_compute("float16", "auto", "auto", CPU)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu avx2 fma\n", False),
        ("model name\t: x\nflags\t\t: fpu avx512f avx512_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("", False),
    ],
)
def test_bf16_instructions_are_read_from_the_cpu(tmp_path: Path, cpuinfo: str, expected: bool) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    assert cpu_has_bf16(path) is expected
    assert not cpu_has_bf16(tmp_path / "absent")
