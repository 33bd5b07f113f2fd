"""Compilers for the proofs of the reference engine's kernels, Ascend side, on top of `kernels-cuda`. No engine."""
