"""TensorRT-LLM's own KV cache manager, asked through `probe_reuse` where its package and a GPU are. Untested by us."""
