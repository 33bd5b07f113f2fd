"""docs/faults.md says what the tests inject, and no less."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from page import PAGE, ROOT


def test_the_page_is_made_from_the_tests_and_lists_enough() -> None:
    command = [sys.executable, str(Path(__file__).with_name("page.py")), "--print"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert PAGE.read_text(encoding="utf-8") == made.stdout, "stale: run python tests/faults/page.py"
    assert made.stdout.count("\n| ") - 1 >= 40
