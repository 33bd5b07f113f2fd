"""gpu-check's dry run goes through everything that a card would be asked."""

from __future__ import annotations

import json
from pathlib import Path

from kernel_proofs import tool_python
from typer.testing import CliRunner

from harness.cli import app

OPERATIONS = ("extend", "decode", "write", "copy_blocks", "rotary", "conv1d", "delta_token", "delta_chunk")


def test_a_dry_run_goes_through_everything(tmp_path: Path) -> None:
    tool_python("kernels-cuda")
    out = tmp_path / "check.json"
    done = CliRunner().invoke(app, ["gpu-check", "--dry-run", "--out", str(out)])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["dry_run"] and report["device"] == "cpu" and not report["not_measured"]
    assert len(report["equality"]) >= 9
    assert all(each["broken"] == [] for each in report["equality"])
    for operation in OPERATIONS:
        timed = [each for each in report["kernels"] if each["name"].startswith(operation)]
        assert timed and all(each["ms"] > 0 for each in timed), operation
    assert report["ceilings"]["copy_tb_s"] > 0 and report["ceilings"]["matmul_tflop_s"] > 0
    for each in report["ttft"]:
        assert each["hit_len"] == each["prefix_len"] and each["equal_bits"] and each["warm_ms"] > 0
    assert len(report["ttft"]) == 2
