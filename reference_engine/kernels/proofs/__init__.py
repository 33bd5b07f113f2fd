"""What can be shown about the kernels without a GPU and without an NPU; docs/kernels.md says what it amounts to.

    cases.py        operands and the comparison with the reference, for whoever computes
    interpreter.py  proof 1: the source in Triton's interpreter
    sm90.py         proof 2: compiled for sm_90, with limits
    ascend.py       proof 3: lowered for Ascend, with limits
    lowered.py      proof 4: the Ascend-lowered code executed on the CPU

Each proof is a program (`python -m reference_engine.kernels.proofs.<name>`) for the Python of the environment that
holds its compiler; it prints one JSON line per check and exits with 1 when one fails.
"""
