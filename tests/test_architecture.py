"""The arrows of docs/design.md: which package may import which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "vocabulary": set(),
    "checkpoints": {"vocabulary"},
    "workloads": {"vocabulary"},
    "reference_engine": {"vocabulary", "checkpoints"},
    "adapters": {"vocabulary", "checkpoints", "reference_engine"},
    "harness": {"vocabulary", "checkpoints", "workloads", "reference_engine", "adapters"},
}
ENGINES = {"vllm", "sglang", "llama_cpp", "xllamacpp"}


def imports(path: Path) -> set[str]:
    """Dotted names of absolute imports anywhere in a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[package] - {package}
    for path in (ROOT / package).rglob("*.py"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & forbidden, f"{path.relative_to(ROOT)} imports {sorted(tops & forbidden)}"


def test_only_workers_probes_and_hosts_import_an_engine() -> None:
    for package in MAY_IMPORT:
        for path in (ROOT / package).rglob("*.py"):
            if {name.split(".")[0] for name in imports(path)} & ENGINES:
                assert package == "adapters", f"{path.relative_to(ROOT)} imports an engine"


def test_laws_need_neither_torch_nor_the_engine_beside_them() -> None:
    for path in (ROOT / "reference_engine" / "laws").rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "triton", "safetensors"}
        assert all(
            name.startswith("reference_engine.laws") for name in imports(path) if name.startswith("reference_engine")
        )


def test_the_harness_uses_of_the_reference_engine_only_the_laws() -> None:
    for path in (ROOT / "harness").rglob("*.py"):
        for name in imports(path):
            assert not name.startswith("reference_engine") or name.startswith("reference_engine.laws")
