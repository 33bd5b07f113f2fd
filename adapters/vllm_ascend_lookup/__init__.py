"""vLLM-Ascend's scheduler-side patches over the vLLM of the same release, asked without an NPU (fidelity `lookup`)."""
