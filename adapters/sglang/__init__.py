"""SGLang by its HTTP server: launched on a CPU or CUDA, or attached to by URL."""
