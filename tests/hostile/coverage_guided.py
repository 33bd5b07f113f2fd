"""Coverage-guided fuzzing of one parser: `python tests/hostile/coverage_guided.py PARSER [-max_total_time=60 ...]`.

Needs atheris (`pip install atheris`; wheels for Python 3.11 to 3.13), which hitparity does not depend on. Names are
those of test_parsers.py; further arguments are libFuzzer's. Ends with an exception and the input that caused it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found]

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
with atheris.instrument_imports(include=["adapters", "checkpoints", "harness", "vocabulary", "workloads", "json"]):
    from test_parsers import PARSERS, survives


def main() -> None:
    """Begin with the honest input of the parser."""
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        sys.exit(f"usage: coverage_guided.py PARSER [libFuzzer's arguments]; parsers: {', '.join(PARSERS)}")
    name = sys.argv.pop(1)
    with tempfile.TemporaryDirectory(prefix="hitparity-fuzz-") as text:
        corpus, scratch = Path(text, "corpus"), Path(text, "scratch")
        corpus.mkdir()
        scratch.mkdir()
        (corpus / "honest").write_bytes(PARSERS[name][1])
        atheris.Setup([*sys.argv, str(corpus)], lambda data: survives(name, data, scratch))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
