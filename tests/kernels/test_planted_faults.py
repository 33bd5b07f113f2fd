"""Faults planted in copies of the sources: each proof must find those that it is there for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kernel_proofs import ROOT, run_proof

CAUSAL = ("seen = ((first + n)[None, :] <= row[:, None])", "seen = ((first + n)[None, :] < row[:, None])")
HIT = ("cached = (first + n < hit_len)[:, None]", "cached = (first + n < hit_len - 1)[:, None]")
POSITION = ("angle = tl.cast(tl.load(angle_ptr + task), tl.int64) * HALF", "angle = tl.cast(task, tl.int64) * HALF")
FAULTS = {
    "causal mask off by one": ("attention.py", CAUSAL, "extend fp32 page 16 window None"),
    "last cached key hidden": ("attention.py", HIT, "extend fp32 page 16 window None"),
    "absolute position dropped": ("rotary.py", POSITION, "rotary fp32"),
}


def faulty(tmp_path: Path, file: str, change: tuple[str, str]) -> Path:
    """A copy of the packages that the proofs import, with one change that must apply exactly once."""
    for package in ("vocabulary", "reference_engine"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "reference_engine" / "kernels" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(change[0]) == 1, f"{file}: {change[0]!r} occurs {text.count(change[0])} times"
    path.write_text(text.replace(*change), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("proof", ["interpreter", "lowered"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_kernel_is_found(tmp_path: Path, proof: str, fault: str) -> None:
    file, change, only = FAULTS[fault]
    done = run_proof(proof, root=faulty(tmp_path, f"source/{file}", change), only=only)
    assert done.status == 1, done.said
    assert done.broken and set(done.broken) == {each["name"] for each in done.checks}


def test_a_tile_without_tensor_cores_is_found(tmp_path: Path) -> None:
    change = ("128: Tile(128, 64, 8, 3)", "128: Tile(32, 64, 4, 3)")
    done = run_proof("sm90", root=faulty(tmp_path, "targets.py", change), only="extend dim 128 group 4 page 64")
    assert done.status == 1, done.said
    assert any("HGMMA" in reason for reasons in done.broken.values() for reason in reasons)


def test_a_tile_that_does_not_fit_the_npu_is_found(tmp_path: Path) -> None:
    change = ("128: Tile(64, 64, 4, 1)", "128: Tile(128, 64, 4, 1)")
    only = "extend dim 128 group 4 page 64 | Ascend910B3"
    done = run_proof("ascend", root=faulty(tmp_path, "targets.py", change), only=only)
    assert done.status == 1, done.said
    assert any("overflow" in reason for reasons in done.broken.values() for reason in reasons)


def test_a_gather_that_becomes_a_scalar_loop_is_found(tmp_path: Path) -> None:
    gather = "gather_pages=False"
    only = "extend dim 128 group 4 page 16 window 1024 | Ascend910B3"
    done = run_proof("ascend", root=faulty(tmp_path, "targets.py", (gather, "gather_pages=True")), only=only)
    assert done.status == 1, done.said
    assert any("scalar loops" in reason for reasons in done.broken.values() for reason in reasons)
