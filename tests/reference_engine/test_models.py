"""Every architecture computes what transformers computes, however its rows are cut into calls."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_memory import LIVE, Sequential
from torch import Tensor

from checkpoints import Checkpoint
from checkpoints.layout import tensor_shapes
from reference_engine.pools import StatePool

pytestmark = pytest.mark.live("reference")
SCRIPT = Path(__file__).with_name("transformers_states.py")
TOLERANCE = 1e-5
"""Share of the largest logit; measured 2e-6 (fp32, AVX2, two threads)."""
LENGTH = 150
"""Longer than tiny-gemma3's window, and than two chunks of the delta rule."""
IDS = [int(each) for each in np.random.default_rng(1).integers(300, 2048, LENGTH + 1)]
CUTS = {"whole": (LENGTH,), "on the grid": (64, 128, LENGTH), "anywhere": (1, 70, 140, LENGTH - 1, LENGTH)}
MODELS = ("tiny-gemma3", "tiny-gemma3 stretched", "tiny-qwen3.5", "tiny-qwen3.5-mtp", "qwen3-next")


@pytest.fixture(scope="module")
def folders(checkpoint: Callable[[str], Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "tiny-gemma3": checkpoint("tiny-gemma3").directory,
        "tiny-gemma3 stretched": stretched(checkpoint("tiny-gemma3").directory, root / "stretched"),
        "tiny-qwen3.5": checkpoint("tiny-qwen3.5").directory,
        "tiny-qwen3.5-mtp": checkpoint("tiny-qwen3.5-mtp").directory,
        "qwen3-next": qwen3_next(checkpoint("tiny-qwen3.5").directory, root / "next"),
    }


@pytest.fixture(scope="module")
def theirs(
    folders: Mapping[str, Path], engine_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Tensor]:
    """Logits by model, and `MODEL.draft`."""
    out = tmp_path_factory.mktemp("theirs") / "out.npz"
    jobs = {
        name: {"folder": str(folder), "ids": IDS if name == "tiny-qwen3.5-mtp" else IDS[:LENGTH]}
        for name, folder in folders.items()
    }
    done = subprocess.run(
        [engine_python("vllm"), SCRIPT, out],
        input=json.dumps(jobs),
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: torch.from_numpy(values) for name, values in np.load(out).items()}


def stretched(source: Path, folder: Path) -> Path:
    """Gemma 3 as transformers 5 writes it, with the position scaling of the larger real ones."""
    raw = json.loads((source / "config.json").read_text())
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": raw.pop("rope_theta")},
        "sliding_attention": {"rope_type": "default", "rope_theta": raw.pop("rope_local_base_freq")},
    }
    return write(folder, raw | {"rope_parameters": rope}, load_file(source / "model.safetensors"))


def qwen3_next(source: Path, folder: Path) -> Path:
    """A Qwen3-Next without experts: inputs packed by key head, two value heads to each."""
    raw = json.loads((source / "config.json").read_text())
    raw |= {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "num_experts": 0}
    raw |= {"linear_num_value_heads": 4, "mlp_only_layers": list(range(raw["num_hidden_layers"]))}
    hidden, keys, heads = raw["hidden_size"], raw["linear_num_key_heads"], raw["linear_num_value_heads"]
    key_width, value_width = keys * raw["linear_key_head_dim"], heads * raw["linear_value_head_dim"]
    shapes = {
        name.replace("in_proj_qkv.", "in_proj_qkvz.").replace("in_proj_a.", "in_proj_ba."): shape
        for name, shape in tensor_shapes(raw | {"model_type": "qwen3_5_text"}).items()
        if "in_proj_z" not in name and "in_proj_b." not in name
    }
    random = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in shapes.items():
        if "in_proj_qkvz" in name:
            shape = (2 * key_width + 2 * value_width, hidden)  # noqa: PLW2901
        elif "in_proj_ba" in name:
            shape = (2 * heads, hidden)  # noqa: PLW2901
        weights[name] = torch.randn(shape, generator=random) / math.sqrt(shape[-1] if len(shape) > 1 else 16)
    return write(folder, raw, weights)


def write(folder: Path, config: Mapping[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.live("vllm")
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(
    folders: Mapping[str, Path], theirs: Mapping[str, Tensor], name: str
) -> None:
    for backend in ("fused", "torch"):
        model = Sequential(folders[name], backend)
        for cuts in CUTS.values() if backend == "fused" else [CUTS["anywhere"]]:
            logits, hidden = model.run(IDS[:LENGTH], cuts)
            assert difference(logits, theirs[name]) <= TOLERANCE, (backend, cuts)
        if model.config.mtp:
            call = model.call(IDS[1:], 0)
            assert difference(model.decoder.draft(call, hidden)[0], theirs[f"{name}.draft"][-1:]) <= TOLERANCE


def test_drafts_are_right_sometimes_and_wrong_sometimes(folders: Mapping[str, Path]) -> None:
    model, tries, right = Sequential(folders["tiny-qwen3.5-mtp"]), 60, 0
    logits, hidden = model.run(IDS[:LENGTH], (LENGTH,))
    token = int(logits[-1].argmax())
    guess = drafted(model, [*IDS[1:LENGTH], token], 0, hidden)
    for position in range(LENGTH, LENGTH + tries):
        logits, hidden = model.decoder.forward_all(model.call([token], position))
        token = int(logits.argmax())
        right += token == guess
        guess = drafted(model, [token], position, hidden)
    assert tries // 10 < right < tries * 9 // 10


def drafted(model: Sequential, ids: Sequence[int], start: int, hidden: Tensor) -> int:
    return int(model.decoder.draft(model.call(ids, start), hidden)[0].argmax())


@pytest.mark.parametrize("name", ["tiny-gemma3", "tiny-qwen3.5"])
def test_a_resumed_run_gives_the_bits_of_a_cold_one_on_the_grid(folders: Mapping[str, Path], name: str) -> None:
    model, kept = Sequential(folders[name]), 3

    def rest(read: int) -> Tensor:
        model.decoder.forward(model.call(IDS[64:128], 64, read=read), want_logits=False)
        logits = model.decoder.forward(model.call(IDS[128:LENGTH], 128), want_logits=True)
        assert logits is not None
        return logits

    model.decoder.forward(model.call(IDS[:64], 0), want_logits=False)
    for pool in model.decoder.pools:
        if isinstance(pool, StatePool):
            pool.copy(np.array([LIVE]), np.array([kept]))
    assert torch.equal(rest(LIVE), rest(kept))


@pytest.mark.parametrize("backend", ["fused", "torch"])
@pytest.mark.parametrize("at", [64, 70])
def test_a_state_kept_inside_a_call_is_the_state_there(folders: Mapping[str, Path], backend: str, at: int) -> None:
    model, kept = Sequential(folders["tiny-qwen3.5"], backend), 5
    cold = model.decoder.forward(model.call(IDS[:LENGTH], 0, keep=((at, kept),)), want_logits=True)
    warm = model.decoder.forward(model.call(IDS[at:LENGTH], at, read=kept), want_logits=True)
    stale = model.decoder.forward(model.call(IDS[at:LENGTH], at), want_logits=True)
    assert cold is not None and warm is not None and stale is not None
    assert difference(warm, cold) <= TOLERANCE
    assert difference(stale, cold) > 10 * TOLERANCE  # the state behind the whole prompt


def test_a_window_reads_nothing_behind_it(folders: Mapping[str, Path]) -> None:
    model = Sequential(folders["tiny-gemma3"])
    cold, _ = model.run(IDS[:LENGTH], (LENGTH - 2, LENGTH))
    window = model.config.window
    assert window is not None
    pool = model.decoder.pools[[group.window for group in model.groups].index(window)]
    first = LENGTH - 2 - window + 1
    for spoilt, same in ((first, True), (first + 1, False)):
        pool.keys[:, :spoilt] = 1e3
        pool.values[:, :spoilt] = 1e3
        again, _ = model.decoder.forward_all(model.call(IDS[LENGTH - 2 : LENGTH], LENGTH - 2))
        assert torch.equal(again, cold[-2:]) is same


def test_several_groups_of_a_kind_compute_the_same(folders: Mapping[str, Path]) -> None:
    one, several = (
        Sequential(folders["tiny-qwen3.5-mtp"], groups=groups)
        for groups in (("full", "gdn"), ("gdn:528", "full:528", "gdn:528", "gdn:528"))
    )
    cuts = CUTS["anywhere"]
    assert torch.equal(one.run(IDS[:LENGTH], cuts)[0], several.run(IDS[:LENGTH], cuts)[0])
