"""vLLM's real engine core, scheduler and cache manager, asked without a model (fidelity `lookup`), in five versions."""
