"""The four proofs without hardware, each whole: docs/kernels.md says what they amount to."""

from __future__ import annotations

import pytest
from kernel_proofs import run_proof

FEWEST = {"interpreter": 70, "sm90": 20, "ascend": 40, "lowered": 18}
"""Checks that a proof has at least: an empty matrix proves nothing."""


@pytest.mark.parametrize("proof", FEWEST)
def test_proof(proof: str) -> None:
    done = run_proof(proof)
    assert not done.broken
    assert done.status == 0, done.said
    assert len(done.checks) >= FEWEST[proof]
