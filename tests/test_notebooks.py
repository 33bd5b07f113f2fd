"""The notebooks are built from the committed scripts, and executed on the committed results."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from notebooks.__main__ import build, scripts


@pytest.fixture(scope="module", params=scripts(), ids=lambda path: path.stem)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(request.param, tmp_path_factory.mktemp("notebooks"))


def test_it_shows_tables_and_a_figure(built: Path) -> None:
    notebook = nbformat.read(built, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    kinds = [kind for cell in code for output in cell.outputs for kind in output.get("data", {})]
    assert "text/html" in kinds
    assert "image/svg+xml" in kinds
    assert not [output for cell in code for output in cell.outputs if output.get("name") == "stderr"]
    assert str(built.parent) not in built.read_text(encoding="utf-8")


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    script = next(path for path in scripts() if path.stem == "upgrade")
    assert build(script, tmp_path / "one").read_bytes() == build(script, tmp_path / "two").read_bytes()
