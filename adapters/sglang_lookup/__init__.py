"""SGLang's own scheduler and caches, asked without a model forward."""
