"""Compilers for the proofs of the reference engine's kernels, CUDA side: Triton beside a CPU build of torch."""
