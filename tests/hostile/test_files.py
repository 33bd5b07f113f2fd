"""Names and links in what others made, code in model folders, and what reaches a terminal or a page."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import Checkpoint
from harness.page import page
from harness.store import CELL_FILE, REQUESTS_FILE, RUN_FILE, RunLock, load_manifests, load_run
from harness.terminal import Terminal
from vocabulary.bounded import inside, read_bytes
from vocabulary.errors import UsageError

ROOT = Path(__file__).parents[2]
GOOD = ROOT / "results/quickstart-all/example"
EVIL = "<script>alert(1)</script>\u202egpj.exe\x1b]0;owned\x07 \"'&"
PACKAGES = ("adapters", "benchmarks", "checkpoints", "harness", "reference_engine", "vocabulary", "workloads")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one cell, to be spoilt."""
    manifest = json.loads((GOOD / RUN_FILE).read_bytes())
    manifest["cells"] = manifest["cells"][:1]
    (tmp_path / RUN_FILE).write_text(json.dumps(manifest), encoding="utf-8")
    shutil.copytree(GOOD / manifest["cells"][0], tmp_path / manifest["cells"][0])
    load_run(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["..", "../other", "/etc", "a/b", ".hidden", "", "a\x00b", "a\nb", "x" * 300])
def test_a_run_cannot_name_a_cell_outside_itself(name: str, run: Path) -> None:
    manifest = json.loads((run / RUN_FILE).read_bytes()) | {"cells": [name]}
    (run / RUN_FILE).write_text(json.dumps(manifest), encoding="utf-8")
    for read in (load_run, load_manifests):
        with pytest.raises(UsageError, match="refuses the name"):
            read(run)


@pytest.mark.parametrize("what", [RUN_FILE, "", CELL_FILE, REQUESTS_FILE])
def test_links_in_a_run_are_not_followed(what: str, run: Path) -> None:
    cell = json.loads((run / RUN_FILE).read_bytes())["cells"][0]
    path = run / RUN_FILE if what == RUN_FILE else run / cell / what if what else run / cell
    moved = path.rename(run / "moved")
    path.symlink_to(moved)
    with pytest.raises(UsageError, match="is a symbolic link"):
        load_run(run)


def test_a_lock_that_is_a_link_empties_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept", encoding="utf-8")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match="cannot be written"):
        RunLock(tmp_path)
    assert (tmp_path / "precious").read_text(encoding="utf-8") == "kept"


@given(name=st.text() | st.lists(st.sampled_from(["..", ".", "/", "a", "\\", "~", "\0"])).map("".join))
def test_no_name_leads_out_of_a_folder(name: str) -> None:
    folder = Path("/nowhere/folder")
    try:
        found = inside(folder, name)
    except UsageError:
        return
    assert Path(os.path.normpath(found)).parent == folder


def test_a_pipe_or_device_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(UsageError, match="no regular file"):
            read_bytes(path)


@pytest.mark.parametrize("name", ["modeling_x.py", "pytorch_model.bin", "weights.pt", "state.pkl"])
def test_a_model_folder_with_code_in_it_is_refused(name: str, model: Path) -> None:
    (model / name).write_bytes(b"")
    with pytest.raises(UsageError, match=f"{name}: could run code when it is loaded"):
        Checkpoint.open(model)


def test_a_model_folder_cannot_name_files_outside_itself(model: Path) -> None:
    manifest = json.loads((model / "hitparity.json").read_bytes())
    manifest["sha256"]["../../etc/passwd"] = "0"
    (model / "hitparity.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UsageError, match="refuses the name"):
        Checkpoint.open(model)


def test_links_in_a_model_folder_are_not_followed(model: Path, tmp_path: Path) -> None:
    moved = (model / "model.gguf").rename(tmp_path / "elsewhere.gguf")
    (model / "model.gguf").symlink_to(moved)
    with pytest.raises(UsageError, match="is a symbolic link"):
        Checkpoint.open(model)


@pytest.fixture
def model(checkpoint: object, tmp_path: Path) -> Path:
    """A copy of a tiny model."""
    assert callable(checkpoint)
    return Path(shutil.copytree(checkpoint("tiny-qwen3").directory, tmp_path / "model"))


def test_no_code_of_ours_trusts_or_unpickles() -> None:
    """`trust_remote_code` is nowhere true, and nothing is read that could run."""
    trusts = re.compile(r"trust[_-]remote[_-]code(?!\W{0,4}(=|:)\s*False)")
    unpickles = re.compile(
        r"\bpickle\.|import (pickle|dill|joblib|marshal|shelve)|allow_pickle=True|torch\.load\(|yaml\.load\(|np\.load\("
    )
    runs = re.compile(r"(?<![\w.])(eval|exec)\(|os\.system\(|shell=True")
    seen = 0
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        seen += 1
        for pattern in (trusts, unpickles, runs):
            assert not (found := pattern.search(text)), f"{path}: {found and found.group()}"
    assert seen > 200


@given(text=st.text() | st.sampled_from([EVIL, "\x1b[2J\x1b[H", "\x9b31m", "\u2066a\u2069", "a\rb", "\x08" * 9]))
def test_a_terminal_gets_no_commands_from_a_text(text: str) -> None:
    for markup in (True, False):
        file = io.StringIO()
        console = Terminal(file=file, width=80, force_terminal=False, markup=markup, emoji=False, highlight=False)
        console.print(text.replace("[", "(") if markup else text, soft_wrap=True)
        shown = file.getvalue()
        assert all(c.isprintable() or c in "\n\u00a0" for c in shown), ascii(shown)


def test_a_page_shows_markup_in_names_as_text(run: Path) -> None:
    manifest = json.loads((run / RUN_FILE).read_bytes())
    cell = manifest["cells"][0]
    spoilt = {"engine_label": EVIL, "model": EVIL, "workload": EVIL}
    fields = json.loads((run / cell / CELL_FILE).read_bytes()) | spoilt | {"why": EVIL}
    (run / cell / CELL_FILE).write_text(json.dumps(fields), encoding="utf-8")
    lines = [
        json.loads(line) | spoilt | {"label": EVIL} for line in (run / cell / REQUESTS_FILE).open(encoding="utf-8")
    ]
    (run / cell / REQUESTS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    shown = page(load_run(run))
    assert "alert(1)" in shown, "the name is shown"
    assert "<script>alert" not in shown
    for character in "\u202e\x1b\x07":
        assert character not in shown
