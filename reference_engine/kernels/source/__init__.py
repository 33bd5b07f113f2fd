"""Triton kernels, one file per family, in the language of Triton 3.2: no tensor descriptors, no inline assembly.

Every kernel loops over tasks, so that the grid is a choice: one program per task (CUDA) or one per core (Ascend).
Addresses of rows are built without `//` and `%` over vectors, because Ascend turns those into scalar loads; arithmetic
in 64 bits stays scalar for the same reason. Loop variables are Python integers in the interpreter, hence `tl.cast`.
"""
