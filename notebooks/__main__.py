"""`python -m notebooks OUT`: each percent-format script of this folder as an executed notebook `OUT/NAME.ipynb`.

The scripts are what is committed and reviewed; notebooks are built (`make notebooks`). The same results give the same
bytes: cells are numbered, and times and the interpreter's version are left out.
"""

import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
TIMEOUT_S = 600


def scripts() -> list[Path]:
    return sorted(path for path in HERE.glob("*.py") if path != Path(__file__))


def build(script: Path, out: Path) -> Path:
    """Execute one script and write its notebook; nbclient's CellExecutionError holds the cell that failed."""
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    out.mkdir(parents=True, exist_ok=True)
    # The kernel finds the project wherever it is started: the folder of this repository, before all others.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        startup_timeout=TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": out}},
    )
    client.execute()
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    target = out / f"{script.stem}.ipynb"
    nbformat.write(notebook, target)
    return target


if __name__ == "__main__":
    for each in scripts():
        print(build(each, Path(sys.argv[1])))
