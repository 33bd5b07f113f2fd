"""Kernels of the reference engine: a torch reference that runs anywhere, and one Triton source for CUDA and Ascend.

shapes.py      the operands: one layer's pool, batches of sequences, and what is refused
pool.py, rotary.py, attention.py, conv1d.py, delta.py    per family: the torch reference and the launch
source/        the Triton kernels themselves, in the subset that both compilers take (Triton 3.2)
targets.py     per device: tiles, grid, precision
interface.py   the operations as one interface, and the explicit choice of who computes them
proofs/        what can be shown without a GPU or an NPU (docs/kernels.md)
"""
