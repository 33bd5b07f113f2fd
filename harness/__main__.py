"""`python -m harness` is the command `hitparity`."""

from harness.cli import main

main()
